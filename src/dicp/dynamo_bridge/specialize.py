# SPDX-License-Identifier: Apache-2.0
"""Graphs with changing sizes for a backend that supports fixed sizes only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from dicp import torch_internals
from dicp.backend import Executable

SHAPES = 16  # number of specialisations kept, the most recently used


def is_dynamic(gm: fx.GraphModule) -> bool:
    """Whether any value of a graph has a symbolic size, or is one."""
    leaves = [leaf for node in gm.graph.nodes for leaf in tree_leaves(node.meta.get("val"))]
    return any(_symbolic(leaf) for leaf in leaves)


def _symbolic(value: Any) -> bool:
    sizes = [*value.shape, *value.stride()] if isinstance(value, Tensor) else [value]
    return any(hasattr(size, "node") for size in sizes)


def specialized(
    gm: fx.GraphModule, compile_static: Callable[[fx.GraphModule], tuple[Executable, list[int]]]
) -> Executable:
    """Return a callable with one executable for each set of sizes;
    `args` are a partition's inputs.
    """
    ready: dict[Any, tuple[Executable, list[int]]] = {}

    def run(args: list[Any]) -> Sequence[Any]:
        sizes = tuple(tuple(x.shape) if isinstance(x, Tensor) else x for x in args)
        found = ready.pop(sizes, None)
        if found is None:
            with torch_internals.without_modes():
                found = compile_static(at_sizes(gm, args))
            if len(ready) >= SHAPES:
                del ready[next(iter(ready))]
        ready[sizes] = found
        executable, keep = found
        return executable([args[i] for i in keep])

    return run


def at_sizes(gm: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
    """Specialise the graph to the sizes of these inputs: integers become constants."""
    graph, mode = fx.Graph(), torch_internals.FakeTensorMode()
    new: dict[fx.Node, Any] = {}
    given = iter(args)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(given)
            if not isinstance(value, Tensor):
                new[node] = value
                continue
            new[node] = graph.placeholder(node.name)
            new[node].meta = {"val": mode.from_tensor(value)}
        elif node.op == "call_function":
            new[node] = _static(node, graph, mode, new)
        elif node.op == "output":
            graph.output(tuple(new[n] for n in node.args[0]))
    return fx.GraphModule({}, graph)


def at_example(gm: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Map each tensor node to its form at the sizes of the trace, without data-dependent nodes."""
    graph, mode = fx.Graph(), torch_internals.FakeTensorMode()
    new: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = torch_internals.at_hints(node.meta.get("val"), mode)
            if isinstance(value, Tensor):
                new[node] = graph.placeholder(node.name)
                new[node].meta = {"val": value}
            elif value is not None:
                new[node] = value
        elif node.op == "call_function" and all(n in new for n in node.all_input_nodes):
            try:
                new[node] = _static(node, graph, mode, new)
            except Exception:  # torch raises anything where sizes depend on data
                continue
    return {node: made for node, made in new.items() if isinstance(made, fx.Node)}


def _static(node: fx.Node, graph: fx.Graph, mode: Any, new: dict[fx.Node, Any]) -> Any:
    args = fx.map_arg(node.args, new.__getitem__)
    kwargs = fx.map_arg(node.kwargs, new.__getitem__)

    def value(argument: Any) -> Any:
        return fx.map_arg(argument, lambda n: n.meta["val"])

    assert callable(node.target)
    with mode:
        result = node.target(*value(args), **value(kwargs))
    if isinstance(result, (int, float, bool)):
        return result
    made = graph.call_function(node.target, args, kwargs)
    made.meta = {**node.meta, "val": result}
    return made
