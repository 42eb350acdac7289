# SPDX-License-Identifier: Apache-2.0
"""Partitioning: which nodes a backend supports, which stay eager and why, and the split graph."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from dicp.backend import GraphCompiler
from dicp.dynamo_bridge.passes.canonical import VIEWS
from dicp.dynamo_bridge.specialize import at_example, is_dynamic

NO_WORK = "nothing to compute in its partition"  # a reason that is no gap of the backend


@dataclass(frozen=True)
class Split:
    """A graph that calls its partitions as modules `part_0`, `part_1`, …, and the rest eagerly.

    `eager` has the reason for each node outside of the partitions.
    """

    gm: fx.GraphModule
    parts: dict[str, fx.GraphModule]
    eager: dict[fx.Node, str]


def split(gm: fx.GraphModule, backend: GraphCompiler) -> Split:
    """Split into the fewest partitions that do not depend on each other in a cycle."""
    # a backend for fixed sizes is checked with those of the trace
    fixed = at_example(gm) if backend.dynamic == "specialize" and is_dynamic(gm) else {}
    asked = ((node, reason(fixed.get(node, node), backend)) for node in _calls(gm))
    eager = {node: why for node, why in asked if why}
    regions = _regions(gm, eager)
    for (_, taken), nodes in regions.items():
        if taken and all(_moves_only(node) for node in nodes):
            eager |= dict.fromkeys(nodes, NO_WORK)
    return _rebuild(gm, _regions(gm, eager), eager)


def reason(node: fx.Node, backend: GraphCompiler) -> str | None:
    """Return why a node stays eager; None when the backend supports it."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return reason(node.args[0], backend) if node.args[0].op == "call_function" else None
    if node.target not in backend.conversions:
        fused = getattr(node.target, "namespace", "") == "dlinfer"
        return "no conversion; dlinfer's kernel runs it" if fused else "no conversion"
    elsewhere = _devices(node) - set(backend.devices)
    if elsewhere and not backend.through_host:
        runs = "/".join(backend.devices)
        return f"its tensors are on {'/'.join(sorted(elsewhere))}; {backend.name} runs on {runs}"
    return backend.supports(node)


def _devices(node: fx.Node) -> set[str]:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return {leaf.device.type for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


def _calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "call_function"]


def _moves_only(node: fx.Node) -> bool:
    return node.target in VIEWS or not isinstance(tree_leaves(node.meta.get("val"))[0], Tensor)


Regions = dict[tuple[int, bool], list[fx.Node]]


def _regions(gm: fx.GraphModule, eager: dict[fx.Node, str]) -> Regions:
    """Group nodes by level and kind. An edge stays in its region or goes up a level, so regions in
    order of their levels can run one after the other.
    """
    levels: dict[fx.Node, int] = {}
    regions: Regions = {}
    random = 0
    for node in _calls(gm):
        taken = node not in eager
        before = [n for n in node.all_input_nodes if n in levels]
        # an eager node that needs inputs alone runs first, so that it splits nothing
        level = max([int(taken), *(levels[n] + ((n not in eager) != taken) for n in before)])
        if _draws(node):  # random ops keep their order
            random = level = max(level, random)
        levels[node] = level
        regions.setdefault((level, taken), []).append(node)
    return dict(sorted(regions.items()))


def _draws(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _rebuild(gm: fx.GraphModule, regions: Regions, eager: dict[fx.Node, str]) -> Split:
    graph, new = fx.Graph(), dict[fx.Node, fx.Node]()
    parts: dict[str, fx.GraphModule] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        new[node] = graph.node_copy(node)
    for (_, taken), nodes in regions.items():
        if not taken:
            for node in nodes:
                new[node] = graph.node_copy(node, new.__getitem__)
            continue
        name = f"part_{len(parts)}"
        inputs, outputs, parts[name] = extract(nodes, name)
        call = graph.call_module(name, tuple(new[node] for node in inputs))
        for index, node in enumerate(outputs):
            new[node] = graph.call_function(operator.getitem, (call, index))
            new[node].meta = dict(node.meta)
    end = gm.graph.output_node()
    graph.node_copy(end, new.__getitem__)
    root: dict[str, Any] = dict(parts)
    return Split(fx.GraphModule(root, graph), parts, {new[n]: why for n, why in eager.items()})


def extract(nodes: list[fx.Node], name: str) -> tuple[list[fx.Node], list[fx.Node], fx.GraphModule]:
    """Extract a region as a separate graph: its inputs, its outputs, and the module."""
    inside, graph, new = set(nodes), fx.Graph(), dict[fx.Node, fx.Node]()
    used = (n for node in nodes for n in node.all_input_nodes if n not in inside)
    inputs = list(dict.fromkeys(used))
    outputs = [n for n in nodes if any(user not in inside for user in n.users)]
    for node in inputs:
        new[node] = graph.placeholder(node.name)
        new[node].meta = dict(node.meta)
    for node in nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    graph.output(tuple(new[node] for node in outputs))
    return inputs, outputs, fx.GraphModule({}, graph, class_name=name)
