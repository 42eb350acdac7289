"""The verification level of each mapped overload on each backend, as measured into `levels.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from deeplink_vendors.ascend.graph import backend as ascendgraph
from deeplink_vendors.cpu import onnxrt, openvino
from deeplink_vendors.enflame.graph import backend as topsgraph
from deeplink_vendors.enflame.graph.compiler import compile_sources
from dicp.backend import GraphCompiler
from dicp.conformance import calls as all_calls
from dicp.conformance import op_check
from dicp.conformance.op_check import Outcome
from dicp.conformance.overloads import Call
from dicp.dynamo_bridge.codegen import emit
from dicp.dynamo_bridge.partition import reason

FILE = Path(__file__).with_suffix(".csv")
DTYPES = ("float32", "float16", "bfloat16")
SIMULATED = {backend.name: backend for backend in (ascendgraph, topsgraph)}
REAL = {module.backend.name: module.backend for module in (onnxrt, openvino)}
BACKENDS = REAL | SIMULATED
MOST = 3  # calls of an overload in each type


@dataclass(frozen=True)
class Level:
    """The types in which one overload on one backend is correct, and whether sizes may change."""

    backend: str
    overload: str
    emitted: str  # types in which it was emitted and passed the check
    right: str  # types in which every call that was emitted gave the right values
    dynamic: str  # yes: right for symbolic sizes, too
    eager: str  # why some calls were left to eager


def targets(backend: GraphCompiler) -> list[Any]:
    """The operators that it maps, in order; arithmetic of sizes is none."""
    found = [t for t in backend.conversions if isinstance(t, torch._ops.OpOverload)]
    return sorted((t for t in found if t is not torch.ops.aten.sym_size.int), key=str)


def measured(backend: GraphCompiler, chosen: Iterable[Any] | None = None) -> list[Level]:
    """The levels of all that a backend maps, or of the overloads that are chosen."""
    asked = list(targets(backend) if chosen is None else chosen)
    found = {dtype: outcomes(backend, asked, dtype) for dtype in DTYPES}
    symbolic = outcomes(backend, asked, "float32", True) if backend.dynamic == "native" else {}
    return [
        _level(backend, overload, {d: found[d][overload] for d in DTYPES}, symbolic.get(overload))
        for overload in asked
    ]


def outcomes(
    backend: GraphCompiler,
    asked: Sequence[Any],
    dtype: str,
    dynamic: bool = False,
    calls: dict[Any, list[Call]] | None = None,
) -> dict[Any, list[Outcome]]:
    """Return the outcomes of the calls of each overload."""
    calls = calls or {overload: all_calls.calls(overload, dtype)[:MOST] for overload in asked}
    compile_ = _together(backend, [c for part in calls.values() for c in part])
    original, backend.compile = backend.compile, compile_
    try:
        return {
            overload: [outcome(backend, call, dynamic) for call in part]
            for overload, part in calls.items()
        }
    finally:
        backend.compile = original


def _together(backend: GraphCompiler, calls: list[Call]) -> Callable[[bytes], bytes]:
    """Compile all sources for topsgraph by one run of g++."""
    if backend is not topsgraph:
        return backend.compile
    graphs = [op_check.graph_of(call, False) for call in calls]
    taken = [graph for graph in graphs if not reason(graph.node, backend)]
    sources = list(dict.fromkeys(emit(graph.gm, backend, {}) for graph in taken))
    return dict(zip(sources, compile_sources(sources), strict=True)).__getitem__


def outcome(backend: GraphCompiler, call: Call, dynamic: bool) -> Outcome:
    """Run and judge one call; an error counts as wrong."""
    try:
        return op_check.check(backend, call, dynamic)
    except Exception as error:  # a row of the table, and the tests fail by it
        if dynamic and "symbolic" in str(error):  # torch has no meta kernel for such sizes
            return Outcome("eager", "torch cannot infer it")
        return Outcome("wrong", f"{type(error).__name__}: {error}")


def _level(
    backend: GraphCompiler,
    overload: Any,
    found: dict[str, list[Outcome]],
    symbolic: list[Outcome] | None,
) -> Level:
    emitted = [d for d, part in found.items() if any(o.status != "eager" for o in part)]
    right = [d for d in emitted if all(o.status != "wrong" for o in found[d])]
    dynamic = symbolic is not None and {o.status for o in symbolic} >= {"right"}
    eager = sorted({o.text for part in found.values() for o in part if o.status == "eager"})
    return Level(
        backend.name,
        str(overload),
        " ".join(emitted),
        " ".join(right),
        "yes" if dynamic and all(o.status != "wrong" for o in symbolic or ()) else "",
        "; ".join(eager),
    )


def written(levels: Iterable[Level]) -> str:
    out = io.StringIO()
    table = csv.DictWriter(out, [f.name for f in fields(Level)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(level) for level in levels)
    return out.getvalue()


def kept() -> list[Level]:
    """Read the last measured levels."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [Level(**row) for row in csv.DictReader(file)]
