"""The benchmark of compilers: what its rounds time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from benchmarks import bench_compile
from benchmarks.compile_models import Workload


def test_nothing_is_compiled_in_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    counts: list[int] = []

    def backend(name: str) -> dict[str, Any]:
        def compile_graph(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            compiled.append(name)
            return gm.forward

        return {"backend": compile_graph}

    def rounds(runs: dict[str, Callable[[], Any]], number: int) -> dict[str, list[float]]:
        counts.append(len(compiled))
        for run in runs.values():
            run()
        counts.append(len(compiled))
        return {name: [1.0] for name in runs}

    work = Workload(torch.nn.Linear(3, 2).eval(), (torch.randn(1, 3),))
    monkeypatch.setattr(bench_compile, "WORKLOADS", {"small": lambda: work})
    monkeypatch.setattr(bench_compile, "BACKENDS", {name: backend(name) for name in "ab"})
    monkeypatch.setattr(bench_compile, "_rounds", rounds)
    monkeypatch.setenv("DICP_MEASURE", "0")
    with torch.no_grad():
        rows = bench_compile.measure("small", ["a", "b"], 1)
    assert [row.backend for row in rows] == compiled == ["a", "b"]
    assert counts == [2, 2]
