"""What a recorded graph writes no tool sees: before it is replayed, what waits is looked at, and of
what was known before, nothing is known after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C import DisableTorchFunction

from op_tools import (
    OpCapture,
    OpObserve,
    OpOverflowCheck,
    WhyNan,
    diagnostics,
    interception,
    kernels,
    statistics,
)
from op_tools.capture.packed_reader import Archive


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.Tensor, float], None]:
    """Fills a tensor as a recorded graph does: it is not seen, and nothing counts it."""
    given: list[tuple[torch.Tensor, float]] = []

    def stands_for(graph: object) -> None:
        tensor, value = given.pop()
        with interception.unseen(), DisableTorchFunction(), torch.no_grad():
            tensor.data.fill_(value)

    def fill(tensor: torch.Tensor, value: float) -> None:
        count = tensor._version
        given.append((tensor, value))
        torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]
        assert tensor._version == count

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", stands_for)
    return fill


def lines(folder: Path) -> list[dict[str, Any]]:
    (file,) = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("level", ["api", "aten"])
def test_statistics_are_of_what_was_there(
    level: Any,
    native: bool,
    replay: Callable[[torch.Tensor, float], None],
    starts: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not native:
        monkeypatch.setattr(kernels, "helper", lambda: None)
    x = torch.full((4,), 1.0, device="dipu")
    with torch.no_grad(), OpCapture(mode="statistics", level=level):
        x.neg()
        torch._foreach_neg([x, x.clone()])
        replay(x, 7.0)
        x.neg()
        replay(x, 8.0)  # nothing that was not started waits
        torch._foreach_neg([x, x.clone()])
        replay(x, 9.0)
    seen = [line["inputs"][0]["max"] for line in lines(tmp_path) if "neg" in line["op"]]
    assert seen == [1.0, 1.0, 7.0, 8.0]
    assert not diagnostics.problems()


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_values_are_those_that_were_there(
    native: bool,
    replay: Callable[[torch.Tensor, float], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels.helper() is None:
        pytest.skip("no compiler here")
    monkeypatch.setattr("op_tools.recording.window", lambda kind, index: None)
    if not native:
        monkeypatch.setattr(kernels, "helper", lambda: None)
    x = torch.full((100,), 1.0, device="dipu")
    with OpCapture(format="packed"):
        x.neg()
        replay(x, 7.0)
        x.neg()
    (path,) = (tmp_path / "op_tools_results/op_capture_results").glob("*.opcap")
    archive = Archive(path)
    assert [archive.load(call).args[0][3].item() for call in archive] == [1.0, 7.0]


def test_an_overflow_is_looked_for_again(
    replay: Callable[[torch.Tensor, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "kind_is_seen", lambda kind: kind == "cpu")
    x = torch.ones(3, device="dipu")
    with OpOverflowCheck() as tool:
        x.neg()
        replay(x, float("inf"))
        x.abs()  # passes it on
    assert (tool.count, tool.propagated) == (0, 1)


def test_a_kernel_is_not_blamed_for_what_a_recorded_graph_wrote(
    replay: Callable[[torch.Tensor, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "kind_is_seen", lambda kind: kind == "cpu")
    x = torch.ones(3, device="dipu")
    with WhyNan() as tool:
        y = x.neg()
        replay(y, float("nan"))
        y.sum().item()
    assert tool.found is not None
    assert tool.found["origin"]["op"] == "aten.sum.default"
    assert "before it: aten.neg.default (up to 1)" in tool.found["lines"]


def test_a_tool_that_fails_does_not_stop_a_recorded_graph(
    replay: Callable[[torch.Tensor, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: OpObserve) -> None:
        raise RuntimeError("no more room")

    monkeypatch.setattr(OpObserve, "settle", fails)
    x = torch.ones(3, device="dipu")
    with OpObserve():
        replay(x, 2.0)
    assert x.tolist() == [2.0] * 3
    assert diagnostics.problems("OpObserve")[0].message == "RuntimeError: no more room"
    diagnostics.clear()
