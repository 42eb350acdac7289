"""Permutes that undo each other go away; convolutions get the layout that a backend asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from dicp.backend import Backend
from dicp.dynamo_bridge import infer

aten = torch.ops.aten


def arrange(gm: fx.GraphModule, backend: Backend) -> fx.GraphModule:
    """One permute for two in a row, and none for one that changes nothing."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.permute.default):
        _join(node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _join(node: fx.Node) -> None:
    x, order = node.args
    if not isinstance(x, fx.Node):
        return
    order = _positive(order)
    if x.target is aten.permute.default:
        inner = _positive(x.args[1])  # type: ignore[arg-type]
        x, order = x.args[0], [inner[i] for i in order]  # type: ignore[assignment]
    if order == list(range(len(order))) and not any(u.op == "output" for u in node.users):
        infer.replace(node, x)  # type: ignore[arg-type]
    elif x is not node.args[0]:
        infer.replace(node, infer.insert(node, aten.permute.default, (x, order)))


def _positive(order: Sequence[int]) -> list[int]:
    return [dim % len(order) for dim in order]
