"""Kernels seen by a layer of torch's dispatcher: the same as its observers see."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from op_tools import OpCapture, kernels, steps

Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def native() -> None:
    if kernels.helper() is None:
        pytest.skip("no compiler here")


def lines(folder: Path) -> Lines:
    (path,) = (folder / "op_statistics_result").glob("*.jsonl")
    return [{**json.loads(line), "id": 0} for line in path.read_text().splitlines()]


def sites(found: Lines, op: str) -> list[tuple[str, str]]:
    return [(line["direction"], line["site"]) for line in found if line["op"].startswith(op)]


def test_the_layer_sees_what_observers_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(layer: bool) -> Lines:
        folder = tmp_path / str(layer)
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
        monkeypatch.setattr(kernels, "can_layer", lambda: layer)
        torch.manual_seed(3)
        steps.reset()
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).to(
            "dipu"
        )
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.randn(5, 6).to("dipu")
        with OpCapture(mode="statistics", level="aten"):
            assert kernels.is_layered() == layer
            for _ in range(2):
                model(x.masked_fill(x > 1, 0)).softmax(-1).amax().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert not kernels.is_layered()
        return lines(folder)

    layered, observed = written(True), written(False)
    assert layered == observed
    assert {line["direction"] for line in layered} == {"forward", "backward"}


def test_a_program_with_threads_is_left_to_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)
    assert kernels.can_layer()
    other = threading.Thread(target=print)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), other])
    assert not kernels.can_layer()


def test_threads_that_were_there_before_are_seen(tmp_path: Path) -> None:
    x, go, done = torch.ones(3, device="dipu"), threading.Event(), threading.Event()

    def work() -> None:
        go.wait(30)
        x.mul(2)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with OpCapture(mode="statistics", level="aten"):
        go.set()
        assert done.wait(30)
    thread.join()
    assert [line["op"] for line in lines(tmp_path / "op_tools_results")] == ["aten.mul.Tensor"]


def test_a_compiled_program_is_not_compiled_again() -> None:
    made: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        made.append(1)
        return graph.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    run = torch.compile(program, backend=backend)
    x = torch.ones(3, device="dipu")
    run(x)
    with OpCapture(mode="statistics", level="aten"):
        assert not kernels.is_layered()
        run(x)
    assert made == [1]
    torch._dynamo.reset()


def test_a_kernel_that_raises_ends_its_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "can_layer", lambda: True)
    x = torch.ones(3, 4, device="dipu")
    with OpCapture(mode="statistics", level="aten"):
        with pytest.raises(RuntimeError, match=r"size|shape"):
            torch.mm(x, x)
        x.mul(2)
    assert [line["op"] for line in lines(tmp_path / "op_tools_results")] == ["aten.mul.Tensor"]


def test_a_profiler_sees_all_below_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "can_layer", lambda: True)
    x = torch.ones(3, device="dipu")
    activities = [torch.profiler.ProfilerActivity.CPU]
    capture = OpCapture(mode="statistics", level="aten")
    with capture, torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            x.clone()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::clone"] == 3
    assert counts["aten::empty_strided"] == 3  # which it calls


@pytest.mark.parametrize("way", ["layer", "observers", "mode"])
def test_a_call_without_gradient_takes_no_backward_from_another_line(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "can_layer", lambda: way == "layer")
    if way == "mode":
        monkeypatch.setattr(kernels, "helper", lambda: None)
    x = torch.ones(3, device="dipu", requires_grad=True)
    with OpCapture(mode="statistics", level="aten"):
        y = x.exp()
        mask = x > 0
        y.backward(mask.float())
    (forward, backward) = (
        sites(lines(tmp_path / "op_tools_results"), op)[0][1] for op in ("aten.exp", "aten.mul")
    )
    assert forward == backward
