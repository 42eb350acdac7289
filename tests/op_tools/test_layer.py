"""Kernels seen by a layer of torch's dispatcher: the same as its observers see."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

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


def perceptron() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).to("dipu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(5, 6).to("dipu")

    def step() -> None:
        model(x.masked_fill(x > 1, 0)).softmax(-1).amax().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pictures() -> Callable[[], None]:
    parts = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Dropout(0.5), nn.Linear(36, 3)).to("dipu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    x, target = torch.randn(2, 2, 8, 8).to("dipu"), torch.tensor([0, 2]).to("dipu")

    def step() -> None:
        with torch.autocast("dipu", dtype=torch.bfloat16):
            found = model(x)
        nn.functional.cross_entropy(found.float(), target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def words() -> Callable[[], None]:
    table = torch.randn(9, 8).to("dipu").requires_grad_()
    at = torch.tensor([[1, 4, 2], [0, 8, 3]]).to("dipu")

    def step() -> None:
        x = nn.functional.embedding(at, table)
        q, k = (part.unsqueeze(1) for part in x.split(4, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, torch.stack([q, k]).sum(0))
        y = torch.cat([mixed.squeeze(1), x[:, :, 1:3], x.gather(2, at.unsqueeze(-1) % 8)], -1)
        rows = y.flatten(0, 1)[torch.tensor([1, 0]).to("dipu")]
        scaled = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)
        kept = torch.where(scaled > 0, scaled, torch.zeros_like(scaled))
        loss = (nn.functional.silu(kept).sum(0) / 3).norm().neg()
        loss.backward()
        with torch.no_grad():
            table.sub_(torch.zeros_like(table).copy_(table).mul_(0.1)).add_(loss.item())
        table.grad = None

    return step


@pytest.mark.parametrize("program", [perceptron, pictures, words])
def test_the_layer_sees_what_observers_see(
    program: Callable[[], Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(layer: bool) -> Lines:
        folder = tmp_path / str(layer)
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
        monkeypatch.setattr(kernels, "can_layer", lambda: layer)
        torch.manual_seed(3)
        steps.reset()
        step = program()
        with OpCapture(mode="statistics", level="aten"):
            assert kernels.is_layered() == layer
            step()
            step()
        assert not kernels.is_layered()
        return lines(folder)

    layered, observed = written(True), written(False)
    assert layered == observed
    assert {line["direction"] for line in layered} == {"forward", "backward"}


def test_tracing_is_the_same_with_and_without_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.view(-1)[1:], x.t().reshape(-1).softmax(0)]).sum() * x

    def traced() -> tuple[str, tuple[int, ...], torch.Tensor, torch.Tensor]:
        x = torch.arange(6.0).reshape(2, 3).to("dipu")
        graph = make_fx(program, tracing_mode="symbolic")(x)
        with FakeTensorMode() as fake:
            shape = tuple(program(fake.from_tensor(x)).shape)
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="aot_eager")(x)
        return graph.code, shape, graph(x), compiled

    monkeypatch.setattr(kernels, "can_layer", lambda: True)
    plain = traced()
    with OpCapture(mode="statistics", level="aten"):
        assert kernels.is_layered()
        layered = traced()
    torch._dynamo.reset()
    assert plain[:2] == layered[:2]
    for before, now in zip(plain[2:], layered[2:], strict=True):
        assert torch.equal(before, now)


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


def test_tools_come_and_go_while_another_thread_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "can_layer", lambda: True)
    x, done, told = torch.ones(3, device="dipu"), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        while not done.is_set():
            x.mul(2).view(1, 3)
            x.add(1)
            told.release()

    with OpCapture(mode="statistics", level="aten"):  # the thread has the layer from now on
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
    for turn in range(10):
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / str(turn)))
        with OpCapture(mode="statistics", level="aten"):
            while told.acquire(blocking=False):
                pass
            assert told.acquire(timeout=30) and told.acquire(timeout=30)
            x.t()
        seen = {line["op"] for line in lines(tmp_path / str(turn))}
        assert seen >= {"aten.t.default", "aten.mul.Tensor", "aten.view.default", "aten.add.Tensor"}
    done.set()
    thread.join()


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


def test_a_recorded_graph_writes_after_what_waits(
    starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def replay(graph: object) -> None:
        seen.append(sum(starts))

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    x = torch.ones(4, device="dipu")
    with OpCapture(mode="statistics", level="aten"):
        x + 1
        torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]
    assert seen == [2]
    assert torch.cuda.CUDAGraph.replay is replay
