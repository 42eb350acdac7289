# SPDX-License-Identifier: Apache-2.0
"""Conversions by torch's own decompositions, or a plain torch function: traced, then converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from deeplink.errors import CompileError
from deeplink_vendors.cpu.onnx.conversion import conversions, fake, reason
from deeplink_vendors.cpu.onnx.emitter import OnnxEmitter, Value

aten = torch.ops.aten
Rule = Callable[..., Any]


def _distances(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    return _norm((x.unsqueeze(-2) - y.unsqueeze(-3)).abs(), p)


def _norm(gaps: Tensor, p: float) -> Tensor:
    if p == 0:
        return (gaps != 0).to(gaps.dtype).sum(-1)
    if p == float("inf"):
        return gaps.amax(-1)
    if p == 1:
        return gaps.sum(-1)
    if p == 2:
        return gaps.square().sum(-1).sqrt()
    return gaps.pow(p).sum(-1).pow(1 / p)


_TABLE: dict[Any, Rule] = dict(decomposition_table)
RULES: dict[Any, Rule] = {aten._cdist_forward.default: _distances}
BY_TORCH = (
    aten._native_batch_norm_legit.no_stats,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.embedding_dense_backward.default,
    aten.col2im.default,
)


@conversions.register_conversion(*RULES, *BY_TORCH)
def taken_apart(emitter: OnnxEmitter, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
    """Return the values of a call by converting its decomposition."""
    flat, spec = tree_flatten((args, kwargs))
    vals, _ = tree_flatten(fx.map_arg((node.args, node.kwargs), fake))
    places = [at for at, leaf in enumerate(flat) if isinstance(leaf, Value)]
    rule = RULES.get(node.target) or _TABLE[node.target]

    def call(*given: Any) -> Any:
        leaves = list(flat)
        for at, value in zip(places, given, strict=True):
            leaves[at] = value
        arguments, named = tree_unflatten(leaves, spec)
        return rule(*arguments, **named)

    with enable_python_dispatcher():
        traced = make_fx(call, dict(core_aten_decompositions()))(*(vals[at] for at in places))
    return _walk(emitter, traced, [flat[at] for at in places])


@reason(aten.embedding_dense_backward.default, aten.col2im.default)
def _of_fixed_sizes(node: fx.Node) -> str | None:
    values = [fake(n) for n in node.all_input_nodes]
    sizes = [size for v in values if isinstance(v, Tensor) for size in v.shape]
    fixed = all(isinstance(size, int) for size in sizes)
    return None if fixed else "torch decomposes it for fixed sizes only"


def _walk(emitter: OnnxEmitter, gm: fx.GraphModule, given: list[Value]) -> Any:
    values: dict[fx.Node, Any] = {}
    rest = iter(given)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
        elif node.op == "call_function":
            convert = conversions.get(node.target)
            if convert is None:
                raise CompileError(f"its decomposition has {node.target}, which has no conversion")
            args = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = convert(emitter, node, *args[0], **args[1])
        elif node.op == "output":
            return fx.map_arg(node.args[0], values.__getitem__)
    raise AssertionError("a graph without an output")
