"""Inference compiled for the CPU against eager: one thread, process time, all in one process.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_compile --model llama --backend onnxrtgraph

Candidates take turns, round by round; a figure is the median over rounds of eager / candidate.
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
from deeplink_vendors.cpu import onnxrt, openvino

AIMS = {"resnet50": 1.5, "llama prefill, 64 tokens": 1.3, "llama decode": 1.8}
LEAST = 0.95  # of anything
WARM, ROUNDS = 24, 15
BACKENDS: dict[str, Any] = {
    "onnxrtgraph": onnxrt.backend,
    "openvinograph": openvino.backend,
    "inductor": "inductor",
}


@dataclass(frozen=True)
class Row:
    """One model on one backend: how many times as fast as eager, and what compiling took."""

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
        return LEAST if self.backend == "inductor" else AIMS.get(self.model, LEAST)


def measure(name: str, backends: list[str], rounds: int) -> list[Row]:
    """All backends on one model, beside eager."""
    torch.manual_seed(0)
    work = WORKLOADS[name]()
    expected = work.model(*work.arguments)
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: work.model(*work.arguments)}
    made: dict[str, tuple[float, float, float]] = {}
    for backend in backends:
        run, first, seconds, cpu = compiled(work, backend)
        made[backend] = (seconds, cpu, _error(first, expected))
        runs[backend] = run
    for run in runs.values():  # by then a backend has decided whether it stays eager
        for _ in range(WARM):
            run()
    times = _rounds(runs, rounds)
    rows = []
    for backend in backends:
        ratios = sorted(e / c for e, c in zip(times["eager"], times[backend], strict=True))
        seconds, cpu, error = made[backend]
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        rows.append(Row(name, backend, statistics.median(ratios), low, high, error, seconds, cpu))
    return rows


def compiled(work: Workload, backend: str) -> tuple[Callable[[], Any], Any, float, float]:
    """What runs the model, what its first call gave, and what that took: seconds, CPU seconds."""
    torch.compiler.reset()
    model = torch.compile(work.model, backend=BACKENDS[backend], fullgraph=True, dynamic=False)

    def run() -> Any:
        return model(*work.arguments)

    wall, cpu = time.perf_counter(), time.process_time()
    first = run()
    return run, first, time.perf_counter() - wall, time.process_time() - cpu


def _rounds(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            calls = 0
            start = time.process_time()
            while calls < 3 or time.process_time() - start < 0.05:
                run()
                calls += 1
            times[name].append((time.process_time() - start) / calls)
    return times


def _error(result: Any, expected: Any) -> float:
    """The largest gap, as a share of the largest value."""
    pairs = zip(tree_leaves(result), tree_leaves(expected), strict=True)
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max())
        for a, b in pairs
        if isinstance(a, Tensor)
    )


def second_process(name: str, backend: str) -> tuple[float, float]:
    """What the first call takes in a process that finds an empty cache, and in the next."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_compile", "--first-call", name, backend]
        environment = os.environ | {"DICP_CACHE_DIR": folder}
        found = []
        for _ in range(2):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            found.append(float(done.stdout.split()[-1]))
        return found[0], found[1]


def show(rows: list[Row]) -> Table:
    """The rows as a table; a figure below its aim is marked."""
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
    ):
        table.add_column(heading, justify="left" if heading in ("model", "backend") else "right")
    for row in rows:
        mark = "" if row.ratio >= row.aim else " (below)"
        table.add_row(
            row.model, row.backend, f"{row.ratio:.2f}", f"{row.low:.2f}-{row.high:.2f}",
            f"{row.aim:g}{mark}", f"{row.error:.1e}",
            f"{row.compile_seconds:.1f}", f"{row.compile_cpu:.1f}",
        )  # fmt: skip
    return table


def _show_training(models: list[str], backends: list[str], rounds: int, as_json: bool) -> None:
    names = [n for n in compile_training.LESSONS if not models or any(m in n for m in models)]
    backends = backends or list(compile_training.BACKENDS)
    rows = [row for name in names for row in compile_training.measure(name, backends, rounds)]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console(width=140).print(compile_training.show(rows))


def main() -> None:
    """Measures what is asked for and prints the table, as JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], help="part of a model's name")
    parser.add_argument("--backend", action="append", default=[], help=f"of {', '.join(BACKENDS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cache", action="store_true", help="a second process, from the cache")
    parser.add_argument("--training", action="store_true", help="forward, backward and step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-call", nargs=2, metavar=("MODEL", "BACKEND"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.training:
        _show_training(options.model, options.backend, options.rounds, options.json)
        return
    torch.set_grad_enabled(False)
    if options.first_call:
        torch.manual_seed(0)
        name, backend = options.first_call
        print(compiled(WORKLOADS[name](), backend)[3])
        return
    names = [n for n in WORKLOADS if not options.model or any(m in n for m in options.model)]
    backends = options.backend or list(BACKENDS)
    if options.cache:
        for name in names:
            for backend in backends:
                first, second = second_process(name, backend)
                print(
                    f"{name}, {backend}: {first:.2f} s, then {second:.2f} s: {first / second:.1f}x"
                )
        return
    rows = [row for name in names for row in measure(name, backends, options.rounds)]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        Console(width=120).print(show(rows))


if __name__ == "__main__":
    main()
