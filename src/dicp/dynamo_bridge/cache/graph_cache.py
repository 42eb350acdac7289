# SPDX-License-Identifier: Apache-2.0
"""A whole compiled graph on disk: a later process with an equal model loads it from dynamo's graph
directly, without AOTAutograd and without the passes.

Only graphs of inference that neither write nor return their inputs are stored: for those
AOTAutograd's wrappers do nothing. Assumptions about changing sizes are stored, too; they must hold
when the plan is loaded, and dynamo guards them from then on.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as cache_result
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from deeplink.tensors import bytes_of
from dicp import torch_internals
from dicp.backend import GraphCompiler
from dicp.dynamo_bridge import disk_cache
from dicp.dynamo_bridge.load import open_blob
from dicp.dynamo_bridge.options import Options
from dicp.dynamo_bridge.partition import Split
from dicp.dynamo_bridge.passes.canonical import VIEWS
from dicp.dynamo_bridge.passes.fold import Folded
from dicp.dynamo_bridge.passes.freeze import Frozen
from dicp.dynamo_bridge.report import Record
from dicp.dynamo_bridge.run import Constants, Part, Program, Shape, finisher

NAMESPACES = ("aten", "prims", "prim", "dicp")
MODULES = ("torch", "operator", "builtins", "math", "_operator")


@dataclass(frozen=True)
class _Ref:
    """A node, as an argument of another."""

    name: str


Rows = list[tuple[str, str, str, Any, Any]]


@dataclass(frozen=True)
class Plan:
    """A program without its blobs and weights."""

    body: Rows  # empty where `straight` describes it completely
    straight: list[str] | None
    folded: tuple[Rows, tuple[str, ...], tuple[str, ...]] | None
    attributes: dict[str, Tensor]
    names: dict[str, int]  # of the frozen inputs
    numbers: dict[str, int]
    parts: tuple[tuple[Shape, str], ...]
    orders: list[tuple[int, ...] | None]
    record: dict[str, Any]
    guards: str = ""  # on sizes that change


def is_plain(gm: fx.GraphModule, graph: fx.GraphModule) -> bool:
    """Whether AOTAutograd's graph has the inputs and results of dynamo's graph,
    so that it can be called directly.
    """
    ins, outs = _ends(gm)
    inputs, results = _ends(graph)
    leaves = tree_leaves(outs)
    if len(ins) != len(inputs) or len(leaves) != len(results) or isinstance(outs, fx.Node):
        return False
    return not any(isinstance(n, fx.Node) and _from_input(n) for n in results)


def _ends(gm: fx.GraphModule) -> tuple[list[fx.Node], Any]:
    return list(gm.graph.find_nodes(op="placeholder")), gm.graph.output_node().args[0]


def _from_input(node: fx.Node) -> bool:
    if node.op != "call_function":
        return True
    viewed = (n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), torch.SymInt))
    return node.target in VIEWS and any(_from_input(n) for n in viewed)


def key(
    gm: fx.GraphModule, backend: GraphCompiler, options: Options, weights: Mapping[int, Tensor]
) -> str | None:
    """Return a key of dynamo's graph; None for one that is not stored: with data-dependent sizes,
    or
    functions that are not defined by torch.
    """
    ranges = torch_internals.ranges(torch_internals.sizes(gm))
    if options.verify or not options.cache or backend.embeds or ranges is None:
        return None
    digest = hashlib.sha256(
        repr((disk_cache.head(backend), asdict(options), sorted(weights))).encode()
    )
    digest.update(repr((_state(), ranges)).encode())
    symbols = {name for name, _ in ranges}
    for node in gm.graph.nodes:
        target = _target(node)
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        if target is None or not _determined_by(symbols, value):
            return None
        args = map_aggregate(node.args, _written)
        row = (node.op, node.name, target, args, {k: str(v) for k, v in node.kwargs.items()})
        digest.update(repr((row, disk_cache.known(value))).encode())
        if node.op == "get_attr":
            constant = getattr(gm, str(node.target), None)
            if not isinstance(constant, Tensor):
                return None
            digest.update(bytes_of(constant))
    return digest.hexdigest()


def _determined_by(symbols: set[str], value: Any) -> bool:
    """Whether all sizes of an input are numbers, or expressions of these symbols."""
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return False
    if not isinstance(value, Tensor):
        return True
    made = [n for n in (*value.shape, *value.stride()) if not isinstance(n, int)]
    return all({str(s) for s in n.node.expr.free_symbols} <= symbols for n in made)


def _written(value: Any) -> str:
    return value.name if isinstance(value, fx.Node) else str(value)


def _state() -> tuple[Any, ...]:
    """Return the parts of torch's state that affect tracing."""
    flags = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")],
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        (flags.flash_sdp_enabled(), flags.math_sdp_enabled(), flags.mem_efficient_sdp_enabled()),
    )


def _target(node: fx.Node) -> str | None:
    """Return a name that means the same in any process; None where there is none."""
    target = node.target
    if isinstance(target, str):
        return target if node.op != "call_module" else None
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops:{target}" if target.namespace in NAMESPACES else None
    if _hashable(target) and target in _named():
        return _named()[target]
    module = str(getattr(target, "__module__", "") or "builtins")
    name = str(getattr(target, "__qualname__", getattr(target, "__name__", "")))
    known = module.split(".")[0] in MODULES and name and "<" not in name
    return f"{module}:{name}" if known else None


@cache_result
def _named() -> dict[Any, str]:
    """Return names of functions without a reliable name of their own: max_pool2d, torch.rsqrt."""
    return {
        function: f"{module.__name__}:{name}"
        for module in (torch, torch.nn.functional)
        for name, function in vars(module).items()
        if callable(function) and not isinstance(function, type) and _hashable(function)
    }


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def save(key: str, plan: Plan, backend: GraphCompiler) -> None:
    """Store a plan, unless it cannot be pickled."""
    try:
        blob = pickle.dumps(plan)
    except (pickle.PicklingError, TypeError, AttributeError):
        return
    disk_cache.get(key, backend, lambda: blob, kind="plan")


def describe(
    program: Program,
    folded: Folded,
    attributes: Mapping[str, Tensor],
    names: Mapping[str, int],
    orders: list[tuple[int, ...] | None],
) -> Plan | None:
    """Return the plan of a program; None where a part of it is not on disk."""
    if not all(part.key for part in program.parts):
        return None
    straight = program.straight
    body = rows_of(program.whole.gm) if straight is None else []
    prepare = rows_of(folded.prepare) if isinstance(folded.prepare, fx.GraphModule) else None
    if body is None or (folded.prepare is not None and prepare is None):
        return None
    return Plan(
        body,
        straight,
        None if prepare is None else (prepare, folded.inputs, folded.names),
        dict(attributes),
        dict(names),
        dict(program.numbers),
        tuple((part.shape, part.key) for part in program.parts),
        orders,
        asdict(program.record) if program.record else {},
    )


def load(
    key: str,
    backend: GraphCompiler,
    weights: Mapping[int, Tensor],
    record: Record,
    changing: Sequence[torch.SymInt] = (),
) -> Program | None:
    """Load the program of a key, if all of it is on disk; `changing` are the sizes that change."""
    plan: Plan | None = disk_cache.load(key, backend, "plan")
    if plan is None or not torch_internals.holds(plan.guards, changing):
        return None
    blobs = [disk_cache.find(part_key, backend) for _, part_key in plan.parts]
    if any(found is None for found in blobs):
        return None
    for name in ("nodes", "taken", "parts", "frozen", "eager"):
        setattr(record, name, plan.record[name])
    record.cached = len(blobs)
    prepare = None if plan.folded is None else _Steps(plan.folded[0])
    folded = Folded(prepare, *(plan.folded[1:] if plan.folded else ((), ())))

    def constants(tensors: Mapping[int, Tensor]) -> Constants:
        return folded.constants(plan.attributes | {n: tensors[i] for n, i in plan.names.items()})

    known = constants(weights)
    parts = [
        _part(shape, found, backend, known)
        for (shape, _), found in zip(plan.parts, blobs, strict=True)
        if found is not None
    ]
    whole = Split(module_of(plan.body), {}, {})
    frozen, finish = Frozen(weights), finisher(plan.orders)
    rest = (plan.numbers, known, constants, finish, record)
    return Program(whole, parts, frozen, *rest, straight=plan.straight)


def _part(shape: Shape, blob: bytes, backend: GraphCompiler, known: Constants) -> Part:
    def load(constants: Constants) -> Any:
        return open_blob(blob, shape, backend, True, shape.own(constants))

    return Part(shape, load, load(known), None)


def _ref(node: fx.Node) -> Any:
    return _Ref(node.name)


def rows_of(gm: fx.GraphModule) -> Rows | None:
    """Convert a graph to data; None where it calls a function without a name in other processes."""
    rows: Rows = []
    for node in gm.graph.nodes:
        target = _target(node) if node.op != "call_module" else str(node.target)
        if target is None or (node.op == "call_function" and not _means(target, node.target)):
            return None
        args = fx.map_arg(node.args, _ref)
        kwargs = fx.map_arg(dict(node.kwargs), _ref)
        rows.append((node.op, node.name, target, args, kwargs))
    return rows


def _means(text: str, target: Any) -> bool:
    try:
        return _resolve(text) is target
    except (AttributeError, ImportError):
        return False


def module_of(rows: Sequence[tuple[str, str, str, Any, Any]]) -> fx.GraphModule:
    graph, nodes, root = fx.Graph(), dict[str, fx.Node](), torch.nn.Module()
    for op, name, target, args, kwargs in rows:
        found: Any = target if op != "call_function" else _resolve(target)
        if op == "call_module":
            root.add_module(target, torch.nn.Identity())  # the program sets its parts here
        args, kwargs = (_with_nodes(x, nodes) for x in (args, kwargs))
        nodes[name] = graph.create_node(op, found, tuple(args), kwargs, name=name)
    return fx.GraphModule(root, graph)


class _Steps:
    """An interpreter of a stored graph that runs once or twice, for which compiling is too slow."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __call__(self, *inputs: Any) -> Any:
        values, rest = dict[str, Any](), iter(inputs)

        def filled(given: Any) -> Any:
            return map_aggregate(given, lambda x: values[x.name] if isinstance(x, _Ref) else x)

        for op, name, target, args, kwargs in self._rows:
            if op == "output":
                return filled(args[0])
            if op == "placeholder":
                values[name] = next(rest)
            else:
                values[name] = _resolve(target)(*filled(args), **filled(kwargs))
        return ()


def _with_nodes(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    return map_aggregate(value, lambda x: nodes[x.name] if isinstance(x, _Ref) else x)


def _resolve(text: str) -> Any:
    module, _, name = text.partition(":")
    found: Any = torch.ops if module == "torch.ops" else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
