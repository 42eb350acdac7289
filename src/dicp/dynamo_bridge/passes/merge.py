# SPDX-License-Identifier: Apache-2.0
"""Merging: linears with a common input become one (q/k/v, gate/up), batch norms join convolutions.

Both need constant weights: the joined weight is written as a graph of constants, which `fold`
computes once.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from dicp.backend import GraphCompiler
from dicp.dynamo_bridge.passes import infer

aten, dicp = torch.ops.aten, torch.ops.dicp
WIDE = (torch.float32, torch.float64)


def merge(gm: fx.GraphModule, backend: GraphCompiler, constants: Collection[str]) -> fx.GraphModule:
    """Merge the nodes of a graph; `constants` are the names of the
    placeholders with known values.
    """
    if aten.split_with_sizes.default in backend.conversions and backend.wants("linear"):
        _merge_linears(gm, constants)
    if backend.wants("conv"):
        _join_batch_norms(gm, constants)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _merge_linears(gm: fx.GraphModule, constants: Collection[str]) -> None:
    groups: dict[Any, list[fx.Node]] = {}
    for node in gm.graph.find_nodes(op="call_function", target=dicp.linear.default):
        x, w, b = (*node.args, None)[:3]
        if _is_constant(w, constants) and b is None and len(node.args) < 4:
            groups.setdefault((x, w.meta["val"].dtype), []).append(node)
    for (x, _), nodes in groups.items():
        if len(nodes) > 1:
            _merge_group(x, nodes)


def _merge_group(x: fx.Node, nodes: list[fx.Node]) -> None:
    first = nodes[0]  # find_nodes keeps the graph's order
    sizes = [node.args[1].meta["val"].shape[0] for node in nodes]  # type: ignore[union-attr]
    weight = infer.insert(first, aten.cat.default, ([node.args[1] for node in nodes], 0))
    wide = infer.insert(first, dicp.linear.default, (x, weight, None))
    last = wide.meta["val"].dim() - 1
    pieces = infer.insert(first, aten.split_with_sizes.default, (wide, sizes, last))
    new = [infer.insert(first, operator.getitem, (pieces, i), nodes[i]) for i in range(len(nodes))]
    for node, piece in zip(nodes, new, strict=True):
        infer.replace(node, piece)


def _join_batch_norms(gm: fx.GraphModule, constants: Collection[str]) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=dicp.batch_norm.default):
        conv, weight, bias, mean, var, eps = node.args
        if not isinstance(conv, fx.Node) or conv.target is not dicp.conv.default:
            continue
        w, b = conv.args[1:3]
        given = [v for v in (weight, bias, mean, var, w, b) if v is not None]
        if len(conv.users) > 1 or len(conv.args) > 7:
            continue
        if not all(_is_constant(v, constants) and v.meta["val"].dtype in WIDE for v in given):  # type: ignore[union-attr]
            continue
        _join(node, conv, (weight, bias, mean, var, eps))


def _join(node: fx.Node, conv: fx.Node, norm: tuple[Any, ...]) -> None:
    weight, bias, mean, var, eps = norm
    x, w, b, *rest = conv.args

    def make(target: Any, *args: Any) -> fx.Node:
        return infer.insert(node, target, args, like=conv)

    scale = make(aten.rsqrt.default, make(aten.add.Tensor, var, eps))
    if weight is not None:
        scale = make(aten.mul.Tensor, scale, weight)
    rank = w.meta["val"].dim()  # type: ignore[union-attr]
    column = make(aten.reshape.default, scale, [-1] + [1] * (rank - 1))
    offset = make(aten.neg.default, mean) if b is None else make(aten.sub.Tensor, b, mean)
    offset = make(aten.mul.Tensor, offset, scale)
    if bias is not None:
        offset = make(aten.add.Tensor, offset, bias)
    joined = make(dicp.conv.default, x, make(aten.mul.Tensor, w, column), offset, *rest)
    infer.replace(node, joined)


def _is_constant(value: Any, constants: Collection[str]) -> bool:
    return isinstance(value, fx.Node) and value.name in constants
