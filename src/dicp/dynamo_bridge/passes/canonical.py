# SPDX-License-Identifier: Apache-2.0
"""Canonical form of equivalent ops: views become reshapes, transposes permutes;
copies are removed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dicp.backend import GraphCompiler
from dicp.dynamo_bridge.passes import infer

aten = torch.ops.aten

COPIES = {
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
}  # fmt: skip
VIEWS = COPIES - {aten.clone.default, aten.lift_fresh_copy.default} | {
    aten.reshape.default, aten.permute.default, aten.expand.default, aten.slice.Tensor,
    aten.select.int, aten.unsqueeze.default, aten.squeeze.dims, aten.view.default,
    aten._unsafe_view.default, aten.split_with_sizes.default, operator.getitem,
}  # fmt: skip


def canonicalise(gm: fx.GraphModule, backend: GraphCompiler) -> fx.GraphModule:
    """Rewrite the graph in canonical form;
    whole attentions and norms become requested fused ops.
    """
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in COPIES:
            _drop_copy(node)
            continue
        spelling = SPELLINGS.get(node.target)
        found = spelling(node) if spelling else None
        if node.target is operator.getitem:
            found = _first_result(node, backend)
        if found:
            swap(node, *found)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def swap(node: fx.Node, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
    """Replace a node by another call; the metadata of its value is kept."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    return new


def _drop_copy(node: fx.Node) -> None:
    source = node.args[0]
    # a result must not be an input, nor another result: that copy is part of the program's meaning
    if isinstance(source, fx.Node) and not _escapes(node):
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)


def _escapes(node: fx.Node) -> bool:
    return any(
        user.op == "output" or (user.target in VIEWS and _escapes(user)) for user in node.users
    )


def _permute(node: fx.Node) -> tuple[Any, ...] | None:
    x, *dims = node.args
    if not isinstance(x, fx.Node):
        return None
    order = list(range(x.meta["val"].dim()))
    if len(order) < 2:
        return None
    a, b = dims or (0, 1)
    assert isinstance(a, int) and isinstance(b, int)
    order[a], order[b] = order[b], order[a]
    return aten.permute.default, (x, order)


def _split(node: fx.Node) -> tuple[Any, ...] | None:
    dim = node.args[2] if len(node.args) > 2 else 0
    sizes = [value.shape[dim] for value in node.meta["val"]]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return aten.split_with_sizes.default, (node.args[0], sizes, dim)


SPELLINGS: dict[Any, Callable[[fx.Node], tuple[Any, ...] | None]] = {
    aten.t.default: _permute,
    aten.transpose.int: _permute,
    aten.view.default: lambda node: (aten.reshape.default, node.args),
    aten._unsafe_view.default: lambda node: (aten.reshape.default, node.args),
    aten.split.Tensor: _split,
}


def _first_result(node: fx.Node, backend: GraphCompiler) -> tuple[Any, ...] | None:
    """Return the fused op for an op with several results of which only one is used."""
    source, index = node.args
    if index != 0 or not isinstance(source, fx.Node) or len(source.users) > 1:
        return None
    name, arguments = WHOLE.get(source.target, ("", None))
    if arguments is None or not backend.wants(name):
        return None
    args = arguments(source)
    return None if args is None else (getattr(torch.ops.dicp, name).default, args)


def _bound(node: fx.Node) -> dict[str, Any]:
    """Return a call's arguments by name, with the defaults of its schema."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values = {}
    for i, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        values[argument.name] = (
            node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, default)
        )
    return values


def _attention(node: fx.Node) -> tuple[Any, ...] | None:
    call = _bound(node)
    q, k, v = call["query"], call["key"], call["value"]
    heads, own = q.meta["val"].shape[1], k.meta["val"].shape[1]
    if call["dropout_p"]:
        return None
    if heads != own:
        if not all(isinstance(size, int) for x in (k, v) for size in x.meta["val"].shape):
            return None
        k, v = (_repeat(node, x, heads // own) for x in (k, v))
    mask = call.get("attn_mask", call.get("attn_bias"))
    return q, k, v, mask, bool(call["is_causal"]), call["scale"]


def _repeat(node: fx.Node, x: fx.Node, times: int) -> fx.Node:
    """Repeat each head `times` times: heads of queries that share a head of keys and values."""
    batch, heads, length, size = x.meta["val"].shape
    wide = infer.insert(node, aten.unsqueeze.default, (x, 2))
    wide = infer.insert(node, aten.expand.default, (wide, [batch, heads, times, length, size]))
    shape = [batch, heads * times, length, size]
    return infer.insert(node, aten.reshape.default, (wide, shape))


def _layer_norm(node: fx.Node) -> tuple[Any, ...]:
    call = _bound(node)
    dims = len(call["normalized_shape"])
    return call["input"], dims, call["weight"], call["bias"], call["eps"]


def _batch_norm(node: fx.Node) -> tuple[Any, ...]:
    call = _bound(node)
    names = ("input", "weight", "bias", "running_mean", "running_var", "eps")
    return tuple(call[name] for name in names)


WHOLE: dict[Any, tuple[str, Any]] = {
    aten.native_layer_norm.default: ("layer_norm", _layer_norm),
    aten._native_batch_norm_legit_no_training.default: ("batch_norm", _batch_norm),
    aten._scaled_dot_product_flash_attention_for_cpu.default: ("sdpa", _attention),
    aten._scaled_dot_product_flash_attention.default: ("sdpa", _attention),
    aten._scaled_dot_product_efficient_attention.default: ("sdpa", _attention),
    aten._scaled_dot_product_cudnn_attention.default: ("sdpa", _attention),
}
