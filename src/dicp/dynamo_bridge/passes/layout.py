# SPDX-License-Identifier: Apache-2.0
"""Layouts: convert convolutions to the backend's layout, remove permutes that cancel each other,
and move the others behind elementwise ops until they cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dicp.backend import GraphCompiler
from dicp.dynamo_bridge.passes import infer

aten, dicp = torch.ops.aten, torch.ops.dicp
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
UNARY = {
    aten.relu.default, aten.gelu.default, aten.silu.default, aten.sigmoid.default,
    aten.tanh.default, aten.exp.default, aten.neg.default, aten.hardtanh.default,
    aten.hardswish.default, aten.hardsigmoid.default, aten.leaky_relu.default,
}  # fmt: skip
BINARY = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}


def arrange(gm: fx.GraphModule, backend: GraphCompiler) -> fx.GraphModule:
    """Convert the graph to the backend's layout, with as few permutes as possible."""
    if backend.layout == "NHWC" and backend.wants("conv_nhwc"):
        for node in gm.graph.find_nodes(op="call_function", target=dicp.conv.default):
            _channels_last(node)
        for node in list(gm.graph.nodes):
            _move_behind(node)
    cancel_permutes(gm.graph)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _channels_last(node: fx.Node) -> None:
    if node.meta["val"].dim() != 4:
        return
    x, *rest = node.args
    turned = infer.insert(node, aten.permute.default, (x, TO_LAST))
    done = infer.insert(node, dicp.conv_nhwc.default, (turned, *rest))
    infer.replace(node, infer.insert(node, aten.permute.default, (done, TO_FIRST)))


def _move_behind(node: fx.Node) -> None:
    """Replace op(permute(x)) by permute(op(x)) for an elementwise op;
    all operands must be permuted.
    """
    count = 1 if node.target in UNARY else 2 if node.target in BINARY else 0
    operands = list(node.args[:count])
    if not count or not all(_turned(x) for x in operands):
        return
    sources = [x.args[0] for x in operands]  # type: ignore[union-attr]
    order = _turned(operands[0])
    if any(_turned(x) != order for x in operands) or not _same_sizes(sources):
        return
    done = infer.insert(node, node.target, (*sources, *node.args[count:]), kwargs=node.kwargs)  # type: ignore[arg-type]
    infer.replace(node, infer.insert(node, aten.permute.default, (done, order)))


def _turned(value: Any) -> list[int] | None:
    """Return the order of a permute."""
    if not isinstance(value, fx.Node) or value.target is not aten.permute.default:
        return None
    return _positive(value.args[1])  # type: ignore[arg-type]


def _same_sizes(nodes: Sequence[Any]) -> bool:
    values = [node.meta["val"] for node in nodes]
    return all(isinstance(v, Tensor) for v in values) and len({str(v.shape) for v in values}) == 1


def cancel_permutes(graph: fx.Graph) -> None:
    """Merge consecutive permutes, and remove permutes that change nothing."""
    for node in graph.find_nodes(op="call_function", target=aten.permute.default):
        _join(node)


def _join(node: fx.Node) -> None:
    x: Any = node.args[0]
    order, inner = _turned(node), _turned(x)
    if order is None:
        return
    if inner is not None:
        x, order = x.args[0], [inner[i] for i in order]
    if order == list(range(len(order))) and not any(u.op == "output" for u in node.users):
        infer.replace(node, x)
    elif inner is not None:
        infer.replace(node, infer.insert(node, aten.permute.default, (x, order)))


def _positive(order: Sequence[int]) -> list[int]:
    return [dim % len(order) for dim in order]
