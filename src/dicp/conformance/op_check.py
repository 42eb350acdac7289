# SPDX-License-Identifier: Apache-2.0
"""One call of an overload through a backend's own tables and loader, judged against float64."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from dicp.backend import GraphCompiler, Loading
from dicp.conformance.overloads import Call
from dicp.dynamo_bridge.codegen import emit, results_of
from dicp.dynamo_bridge.partition import reason
from diopi.conformance.cases.case import Case
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.checks import checks
from diopi.conformance.checks.trial import Trial
from diopi.conformance.execution.expected import Expected
from diopi.conformance.execution.running import Run
from diopi.conformance.execution.subject import Subject

CHECKED = ("structure", "dtype", "shape", "values")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: right, eager (with the reason), or wrong (with the error)."""

    status: str
    text: str = ""
    grown: bool = False  # it ran on other sizes, too


@dataclass(frozen=True)
class Graph:
    """One call as a graph."""

    gm: fx.GraphModule
    node: fx.Node
    env: ShapeEnv

    @property
    def exact(self) -> bool:
        """Whether it is valid for all sizes of its symbols; an emitter may have fixed some."""
        return not self.env.guards and not self.env.replacements


def check(
    backend: GraphCompiler, call: Call, dynamic: bool = False, device: str = "cpu"
) -> Outcome:
    """Run and judge a call; a dynamic one also with all sizes increased by one.

    The other sizes use symbols of one graph, or a second graph for a backend that supports fixed
    sizes only.
    """
    if dynamic and backend.dynamic == "specialize":
        return _both_sizes(backend, call, device)
    graph = graph_of(call, dynamic, device)
    why = reason(graph.node, backend)
    if why:
        return Outcome("eager", why)
    run = compiled(backend, graph, device)
    bad = judged(call, run(call.sample.tensors))
    if bad or not dynamic or not graph.exact:
        return Outcome("wrong", bad) if bad else Outcome("right")
    larger = grown(call)
    if larger is None:
        return Outcome("right")
    bad = judged(larger, run(larger.sample.tensors))
    return Outcome("wrong", f"at other sizes: {bad}") if bad else Outcome("right", grown=True)


def _both_sizes(backend: GraphCompiler, call: Call, device: str) -> Outcome:
    found, larger = check(backend, call, False, device), grown(call)
    if found.status != "right" or larger is None:
        return found
    again = check(backend, larger, False, device)
    return replace(again, text=f"at other sizes: {again.text}" if again.text else "", grown=True)


def graph_of(call: Call, dynamic: bool, device: str = "cpu") -> Graph:
    """Build a graph of one node; its inputs are the tensors of the call."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    graph, nodes = fx.Graph(), dict[int, fx.Node]()
    for tensor in call.sample.tensors:
        if id(tensor) not in nodes:
            nodes[id(tensor)] = graph.placeholder(f"x{len(nodes)}")
            nodes[id(tensor)].meta["val"] = _fake(mode, tensor.to(device), dynamic)
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: nodes[id(t)], (call.sample.args, call.sample.kwargs)
    )
    node = graph.call_function(call.overload, tuple(args), kwargs)
    with mode, enable_python_dispatcher():
        given = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = call.overload(*given[0], **given[1])
    graph.output(tuple(_results(graph, node)))
    return Graph(fx.GraphModule({}, graph), node, env)


def _fake(mode: FakeTensorMode, tensor: Tensor, dynamic: bool) -> Any:
    if not dynamic:
        return mode.from_tensor(tensor, static_shapes=True)
    sizes = [DimDynamic.DUCK] * tensor.dim()
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(sizes))


def _results(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    val = node.meta["val"]
    if not isinstance(val, tuple | list):
        return [node]
    found = []
    for number, one in enumerate(val):
        if isinstance(one, Tensor):
            found.append(graph.call_function(operator.getitem, (node, number)))
            found[-1].meta["val"] = one
    return found


def compiled(
    backend: GraphCompiler, graph: Graph, device: str = "cpu"
) -> Callable[[Sequence[Tensor]], list[Any]]:
    """Compile a graph with the backend;
    the returned function takes and returns tensors on the CPU.
    """
    places = graph.gm.graph.find_nodes(op="placeholder")
    nodes = list(graph.gm.graph.output_node().args[0])  # type: ignore[arg-type]
    blob = backend.compile(emit(graph.gm, backend, {}))
    names = tuple(node.name for node in places)
    executable = backend.load(blob, Loading("test", {}, results_of(nodes), names, 1))

    def run(tensors: Sequence[Tensor]) -> list[Any]:
        distinct = list({id(tensor): tensor for tensor in tensors}.values())
        results = executable([tensor.to(device) for tensor in distinct])
        return [r.cpu() if isinstance(r, Tensor) else r for r in results]

    return run


def judged(call: Call, results: list[Any]) -> str:
    """Return the error in the results of a call, by diopi's checks; "" when they are correct."""
    name = call.overload._schema.name.removeprefix("aten::").removeprefix("_")
    callee = Callee(name, call.overload, direct=True)
    sample = replace(call.sample)
    expected = Expected(callee, sample)
    plain = expected.plain.result
    made: Any = results if isinstance(plain, tuple | list) else results[0]
    if not isinstance(plain, Tensor | tuple | list):
        return "" if made == plain else f"{made}, expected {plain}"
    found = Run(made, list(sample.tensors))
    case = Case(name, "", "overload", 0)
    trial = Trial(case, callee, sample, Subject("test", "cpu"), expected, found)
    findings = [f for word in CHECKED for f in checks.CHECKS[word](trial) or []]
    return "; ".join(f"{f.check}: {f.message}" for f in findings if f.grade == "F")


def grown(call: Call) -> Call | None:
    """Increase every size above 1 by one, repeating values; None where the call is then invalid."""
    made: dict[int, Tensor] = {id(t): _grown(t) for t in call.sample.tensors}
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: made[id(t)], (call.sample.args, call.sample.kwargs)
    )
    larger = Call(call.overload, Sample(args, kwargs))
    try:
        call.overload(*args, **kwargs)
    except Exception:  # sizes among its arguments do not fit
        return None
    return larger


def _grown(tensor: Tensor) -> Tensor:
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            tensor = tensor.index_select(dim, torch.arange(size + 1) % size)
    return tensor
