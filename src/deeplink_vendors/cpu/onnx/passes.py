# SPDX-License-Identifier: Apache-2.0
"""Graph passes for compilers that read ONNX: every operator costs a step, even one that moves no
data, so decoding one token at a time needs as few as possible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import known
from dicp.dynamo_bridge.passes import infer

aten, dicp = torch.ops.aten, torch.ops.dicp


def tidy(gm: fx.GraphModule) -> fx.GraphModule:
    """Remove operators between those that compute, where the result is equal."""
    for node in gm.graph.find_nodes(op="call_function", target=dicp.sdpa.default):
        _share_heads(node)
    for node in gm.graph.find_nodes(op="call_function", target=aten.permute.default):
        _still(node)
    for node in gm.graph.find_nodes(op="call_function", target=aten.reshape.default):
        _join(node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _sizes(node: Any) -> list[Any]:
    return list(node.meta["val"].shape)


def _share_heads(node: fx.Node) -> None:
    """Undo the repetition of keys and values for queries that share a head."""
    q, k, v, *rest = node.args
    sources = [_repeated(k), _repeated(v)]
    if None in sources or _sizes(sources[0])[1] != _sizes(sources[1])[1]:
        return
    infer.replace(node, infer.insert(node, dicp.sdpa.default, (q, *sources, *rest), like=node))


def _repeated(value: Any) -> fx.Node | None:
    """Match reshape(expand(unsqueeze(x, 2))), every head of x repeated, and return x."""
    chain = [aten.reshape.default, aten.expand.default, aten.unsqueeze.default]
    found, nodes = value, []
    for target in chain:
        if not isinstance(found, fx.Node) or found.target is not target:
            return None
        nodes.append(found)
        found = found.args[0]
    shapes = [_sizes(node) for node in (*nodes, found)]
    if not known(*shapes[0], *shapes[1], *shapes[3]) or len(shapes[3]) != 4:
        return None
    batch, heads, length, size = shapes[3]
    wide = [batch, heads, shapes[1][2], length, size]
    fits = nodes[2].args[1] in (2, -3) and shapes[1] == wide
    return found if fits and shapes[0] == [batch, heads * wide[2], length, size] else None


def _still(node: fx.Node) -> None:
    """Replace a permute that moves only dimensions of size 1 by a reshape."""
    sizes = _sizes(node.args[0])
    if not known(*sizes):  # comparing a symbol with 1 would specialise it
        return
    order: Any = node.args[1]
    wide = [dim % len(sizes) for dim in order if sizes[dim] != 1]
    if wide == sorted(wide):
        infer.replace(node, infer.insert(node, aten.reshape.default, (node.args[0], _sizes(node))))


def _join(node: fx.Node) -> None:
    """Merge consecutive reshapes, and remove one that changes nothing."""
    source: Any = node.args[0]
    while source.target in (aten.reshape.default, aten.unsqueeze.default):
        source = source.args[0]
    if not known(*_sizes(node), *_sizes(source)):
        return
    result = any(user.op == "output" for user in node.users)
    if _sizes(source) == _sizes(node) and not result:
        infer.replace(node, source)
    elif source is not node.args[0]:
        infer.replace(node, infer.insert(node, aten.reshape.default, (source, _sizes(node))))
