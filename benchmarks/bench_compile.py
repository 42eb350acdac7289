"""Inference compiled for the CPU against eager: one thread, process time, all in one process.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_compile --model llama --backend onnxrtgraph

Candidates alternate, round by round, each with many consecutive calls, as in a decoding loop: 10 ms
of calls that fill the caches with the candidate's data, then 50 ms that count. A result is the
median over rounds of eager / candidate, each by its median call. All are compiled and have decided
what runs before the first round: torch's compiled code is reset once, before the first candidate,
because a later reset would cause compilation, and the decision, within the rounds. `--floor` adds
the products with the weights alone, by torch.mm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks import compile_training
from benchmarks.compile_models import WORKLOADS, Workload
from deeplink import settings
from deeplink_vendors.cpu import onnxrt, openvino
from deeplink_vendors.cuda import graph
from dicp.choice import dicp
from dicp.dynamo_bridge import report

AIMS = {"resnet50": 1.5, "llama prefill, 64 tokens": 1.3, "llama decode": 1.8}
LEAST = 0.95  # of anything
WARM, UNDECIDED, ROUNDS = 8, 10_000, 15
BACKENDS: dict[str, dict[str, Any]] = {
    "onnxrtgraph": {"backend": onnxrt.backend},
    "openvinograph": {"backend": openvino.backend},
    "inductorgraph": {"backend": graph.backend},
    "dicp": {"backend": dicp},
    "dicp, max-autotune": {"backend": dicp, "mode": "max-autotune"},
    "inductor": {"backend": "inductor"},
}
THEIRS = ("inductor", "products alone")  # without an aim


@dataclass(frozen=True)
class Row:
    """One model on one backend: the speed-up over eager, and the time to compile."""

    model: str
    backend: str
    ratio: float
    low: float
    high: float
    error: float
    compile_seconds: float
    compile_cpu: float
    note: str = ""

    @property
    def aim(self) -> float:
        return LEAST if self.backend in THEIRS else AIMS.get(self.model, LEAST)


def measure(name: str, backends: list[str], rounds: int, floor: bool = False) -> list[Row]:
    """Measure all backends on one model, and eager."""
    torch.manual_seed(0)
    torch.compiler.reset()  # once: a later reset would delete compiled candidates
    work = WORKLOADS[name]()
    expected = work.model(*work.arguments)
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: work.model(*work.arguments)}
    made: dict[str, tuple[float, float, float]] = {}
    notes: dict[str, str] = {}
    for backend in backends:
        run, first, whole, _ = compiled(work, backend)
        notes[backend] = settle(run, backend)
        error = max(_error(result, expected) for result in (first, run()))
        made[backend] = (whole.wall, whole.cpu, error)
        runs[backend] = run
    if floor:
        runs["products alone"] = products(work)
        backends = [*backends, "products alone"]
        made["products alone"] = (0.0, 0.0, 0.0)
    times = _rounds(runs, rounds)
    rows = []
    for backend in backends:
        ratios = sorted(e / c for e, c in zip(times["eager"], times[backend], strict=True))
        seconds, cpu, error = made[backend]
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        ratio, note = statistics.median(ratios), notes.get(backend, "")
        rows.append(Row(name, backend, ratio, low, high, error, seconds, cpu, note))
    return rows


def compiled(work: Workload, backend: str) -> tuple[Callable[[], Any], Any, Spent, Spent]:
    """Return the compiled model, the result of its first call, and the time of that call: in total,
    and from dynamo's graph to the callable.
    """
    inner, start = Spent(), Spent.now()
    options = {**BACKENDS[backend], "backend": _watched(BACKENDS[backend]["backend"], inner)}
    model = torch.compile(work.model, fullgraph=True, dynamic=False, **options)

    def run() -> Any:
        return model(*work.arguments)

    first = run()
    whole = Spent()
    whole.add(start)
    return run, first, whole, inner


@dataclass
class Spent:
    """Seconds, and CPU seconds of this process."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time())

    def add(self, start: Spent) -> None:
        """Add the time since `start`."""
        now = Spent.now()
        self.wall += now.wall - start.wall
        self.cpu += now.cpu - start.cpu


def _watched(backend: Any, spent: Spent) -> Callable[..., Any]:
    """Wrap a backend to add up its compile time."""
    inner = torch._dynamo.lookup_backend(backend) if isinstance(backend, str) else backend

    def compile_graph(gm: Any, inputs: Any, **given: Any) -> Any:
        start = Spent.now()
        made = inner(gm, inputs, **given)
        spent.add(start)
        return made

    compile_graph.__name__ = getattr(inner, "__name__", str(backend))
    return compile_graph


def settle(run: Callable[[], Any], backend: str) -> str:
    """Call a model until its backend has decided what runs it; return the decision."""
    measures = backend != "inductor" and settings.DICP_MEASURE.get()
    for _ in range(UNDECIDED if measures else WARM):
        run()
        decision = report.RECORDS[-1].decision.partition(";")[0] if measures else ""
        if decision and not decision.endswith("for now"):
            return _who(decision)
    return ""


def _who(decision: str) -> str:
    """Return what runs the model: the chosen backend, if there were several."""
    return report.RECORDS[-1].backend if decision == "compiled" else decision


def products(work: Workload) -> Callable[[], Any]:
    """Return the products of a call with the weights of its linears, in the best layout, and
    nothing
    else: every weight is read once, from memory where the cache does not hold them all.
    """
    pairs: list[tuple[Tensor, Tensor]] = []

    def note(module: torch.nn.Linear, args: tuple[Tensor]) -> None:
        pairs.append((args[0].reshape(-1, args[0].shape[-1]), module.weight.t().contiguous()))

    linears = [m for m in work.model.modules() if isinstance(m, torch.nn.Linear)]
    hooks = [linear.register_forward_pre_hook(note) for linear in linears]
    work.model(*work.arguments)
    for hook in hooks:
        hook.remove()
    return lambda: [torch.mm(x, w) for x, w in pairs]


def _rounds(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        order = list(runs.items())
        for name, run in reversed(order) if number % 2 else order:  # none is always the second
            _calls(run, 1, 0.01)  # the first finds the cache full of other weights
            times[name].append(statistics.median(_calls(run, 3, 0.05)))
    return times


def _calls(run: Callable[[], Any], least: int, seconds: float) -> list[float]:
    """Return the time of each of many consecutive calls."""
    calls: list[float] = []
    while len(calls) < least or sum(calls) < seconds:
        start = time.process_time()
        run()
        calls.append(time.process_time() - start)
    return calls


def _error(result: Any, expected: Any) -> float:
    """Return the largest difference, as a share of the largest value."""
    pairs = zip(tree_leaves(result), tree_leaves(expected), strict=True)
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max())
        for a, b in pairs
        if isinstance(a, Tensor)
    )


def second_process(name: str, backend: str, precompile: bool) -> list[FirstCall]:
    """Return the first call in a process with an empty cache, and in the next one.

    With `precompile` torch stores its traces, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_compile", "--first-call", name, backend]
        own = {"DICP_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        environment = os.environ | own | {"TORCH_CACHING_PRECOMPILE": str(int(precompile))}
        found = []
        for _ in range(2):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            whole, inner = json.loads(done.stdout.splitlines()[-1])
            found.append(FirstCall(Spent(**whole), Spent(**inner)))
        return found


@dataclass(frozen=True)
class FirstCall:
    """The time of a first call, and the backend's share: the rest is torch's own tracing."""

    whole: Spent
    compiling: Spent


def show_cache(names: list[str], backends: list[str]) -> Table:
    """Build the table of first calls of two processes, the second with the cache of the first."""
    title = "The first call of two processes, CPU seconds (seconds)"
    table = Table(title=title)
    for heading in ("model", "backend", "traces", "first call", "", "compiling", ""):
        table.add_column(heading)
    for name in names:
        for backend in backends:
            for kept in (False, True):
                first, second = second_process(name, backend, kept)
                told = "kept by torch" if kept else "made again"
                both = _both(first.whole, second.whole), _both(first.compiling, second.compiling)
                table.add_row(name, backend, told, *both[0], *both[1])
    return table


def _both(first: Spent, second: Spent) -> tuple[str, str]:
    told = f"{first.cpu:.2f} ({first.wall:.1f}), then {second.cpu:.2f} ({second.wall:.1f})"
    if not second.cpu:
        return told, ""
    return told, f"{first.cpu / second.cpu:.1f} x ({first.wall / second.wall:.1f})"


def show(rows: list[Row]) -> Table:
    """Build the table of rows; a result below its aim is marked."""
    table = Table(title="CPU inference, 1 thread, process time: times as fast as eager")
    for heading in (
        "model",
        "backend",
        "ratio",
        "middle half",
        "aim",
        "error",
        "compile s",
        "CPU s",
        "runs",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "backend") else "right")
    for row in rows:
        mark = "" if row.ratio >= row.aim else " (below)"
        table.add_row(
            row.model, row.backend, f"{row.ratio:.2f}", f"{row.low:.2f}-{row.high:.2f}",
            f"{row.aim:g}{mark}", f"{row.error:.1e}",
            f"{row.compile_seconds:.1f}", f"{row.compile_cpu:.1f}", row.note,
        )  # fmt: skip
    return table


def _show_training(
    models: list[str], backends: list[str], rounds: int, device: str, as_json: bool
) -> None:
    names = [n for n in compile_training.LESSONS if not models or any(m in n for m in models)]
    backends = backends or list(compile_training.BACKENDS[device])
    measured = (compile_training.measure(name, backends, rounds, device) for name in names)
    rows = [row for found in measured for row in found]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console(width=140).print(compile_training.show(rows))


def main() -> None:
    """Measure the selected models and print the table, as JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], help="part of a model's name")
    parser.add_argument("--backend", action="append", default=[], help=f"of {', '.join(BACKENDS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--floor", action="store_true", help="measure the products alone, too")
    parser.add_argument("--cache", action="store_true", help="a second process, from the cache")
    parser.add_argument("--training", action="store_true", help="forward, backward and step")
    parser.add_argument("--device", choices=compile_training.BACKENDS, default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-call", nargs=2, metavar=("MODEL", "BACKEND"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.training:
        given = options.model, options.backend, options.rounds, options.device, options.json
        _show_training(*given)
        return
    torch.set_grad_enabled(False)
    if options.first_call:
        torch.manual_seed(0)
        name, backend = options.first_call
        _, _, whole, inner = compiled(WORKLOADS[name](), backend)
        print(json.dumps([asdict(whole), asdict(inner)]))
        return
    names = [n for n in WORKLOADS if not options.model or any(m in n for m in options.model)]
    if not names:
        parser.error(f"no model is called {options.model}; there are: {'; '.join(WORKLOADS)}")
    backends = options.backend or list(BACKENDS)
    if options.cache:
        Console(width=140).print(show_cache(names, backends))
        return
    rows = [row for name in names for row in measure(name, backends, options.rounds, options.floor)]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console(width=120).print(show(rows))


if __name__ == "__main__":
    main()
