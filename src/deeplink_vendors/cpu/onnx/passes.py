# SPDX-License-Identifier: Apache-2.0
"""Passes of compilers that read ONNX: every operator costs a step there, even one that moves
nothing, so that a token at a time is decoded in as few as there can be.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import known
from dicp.dynamo_bridge.passes import infer

aten, dicp = torch.ops.aten, torch.ops.dicp


def tidy(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph with fewer operators between those that compute."""
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
    """Keys and values as they are, where each was repeated for the queries that share it."""
    q, k, v, *rest = node.args
    sources = [_repeated(k), _repeated(v)]
    if None in sources or _sizes(sources[0])[1] != _sizes(sources[1])[1]:
        return
    infer.replace(node, infer.insert(node, dicp.sdpa.default, (q, *sources, *rest), like=node))


def _repeated(value: Any) -> fx.Node | None:
    """x of reshape(expand(unsqueeze(x, 2))): every head of x several times in a row."""
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
    """A permute that moves only dimensions of one element is a reshape."""
    sizes = _sizes(node.args[0])
    if not known(*sizes):  # a symbol must not be asked whether it is 1
        return
    order: Any = node.args[1]
    wide = [dim % len(sizes) for dim in order if sizes[dim] != 1]
    if wide == sorted(wide):
        infer.replace(node, infer.insert(node, aten.reshape.default, (node.args[0], _sizes(node))))


def _join(node: fx.Node) -> None:
    """One reshape for several in a row, and none for one that changes nothing."""
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
