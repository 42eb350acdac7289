# SPDX-License-Identifier: Apache-2.0
"""Constant folding: nodes that depend on constants alone are computed once,
before the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from dicp.dynamo_bridge.passes.freeze import add_placeholder

LARGEST = 1 << 22  # maximum elements of a folded constant that is larger than its inputs


@dataclass(frozen=True)
class Folded:
    """A folded graph; `prepare` computes its constants from the original ones."""

    prepare: Callable[..., Sequence[Tensor]] | None  # a graph, unless it came from the disk
    inputs: tuple[str, ...]
    names: tuple[str, ...]

    def constants(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all constants by name: the original ones, and those computed from them."""
        if self.prepare is None:
            return dict(given)
        with torch.no_grad():
            made = [t.contiguous() for t in self.prepare(*(given[n] for n in self.inputs))]
        return dict(given) | dict(zip(self.names, made, strict=True))


def fold(gm: fx.GraphModule, constants: Collection[str]) -> Folded:
    """Move the constant part out of a graph; its results become placeholders."""
    inputs = [n for n in gm.graph.find_nodes(op="placeholder") if n.name in constants]
    known = set(inputs)
    for node in gm.graph.nodes:
        if node.op == "call_function" and _foldable(node, known):
            known.add(node)
    border = [n for n in known - set(inputs) if _is_tensor(n) and set(n.users) - known]
    border = [n for n in gm.graph.nodes if n in set(border)]
    border = [n for n in border if not any(user.op == "output" for user in n.users)]
    if not border:
        return Folded(None, (), ())
    prepare = _prepare(inputs, [n for n in gm.graph.nodes if n in known], border)
    names = []
    for node in border:
        place = add_placeholder(gm, f"folded_{node.name}")
        place.meta = dict(node.meta)
        node.replace_all_uses_with(place)
        names.append(place.name)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return Folded(prepare, tuple(node.name for node in inputs), tuple(names))


def _foldable(node: fx.Node, known: set[fx.Node]) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags or not set(node.all_input_nodes) <= known:
        return False
    leaves = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
    if not all(isinstance(size, int) for leaf in leaves for size in leaf.shape):
        return False
    given = sum(n.meta["val"].numel() for n in node.all_input_nodes if _is_tensor(n))
    return bool(sum(leaf.numel() for leaf in leaves) <= max(LARGEST, 2 * given))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _prepare(inputs: list[fx.Node], nodes: list[fx.Node], border: list[fx.Node]) -> fx.GraphModule:
    graph, new = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        new[node] = graph.placeholder(node.name)
    for node in nodes:
        if node not in new:
            new[node] = graph.node_copy(node, new.__getitem__)
    graph.output(tuple(new[node] for node in border))
    graph.eliminate_dead_code()
    return fx.GraphModule({}, graph)
