"""Gradients at the level of torch's functions on a device that the host does not see: they wait for
each other within a backward pass, and what is written of them is what they were.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import (
    DisableTorchFunction,
    DispatchKey,
    DispatchKeySet,
    _ExcludeDispatchKeyGuard,
)
from torch.library import _scoped_library

from op_tools import (
    OpCapture,
    OpObserve,
    diagnostics,
    interception,
    steps,
)
from op_tools.statistics_store import StatisticsStore


def lines(folder: Path) -> list[dict[str, Any]]:
    (file,) = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def leaf(value: float) -> Tensor:
    return torch.full((4,), value, device="dipu", requires_grad=True)


def gradients(folder: Path, word: str) -> dict[str, Any]:
    return next(line for line in lines(folder) if word in line["op"] and "grad_inputs" in line)


def test_the_gradients_of_a_pass_are_reduced_together(starts: list[int], tmp_path: Path) -> None:
    x = leaf(3.0)
    with OpCapture(mode="statistics"):
        for _ in range(2):  # a function that is met for the first time may do anything
            before = len(starts)
            ((x * 2) + 1).abs().neg().sum().backward()
        assert len(starts) == before + 2  # of what came before it, and of all gradients
    assert gradients(tmp_path, "mul")["grad_inputs"][0]["max"] == -2.0
    assert gradients(tmp_path, "abs")["grad_outputs"][0]["max"] == -1.0


def test_a_gradient_that_a_hook_writes_is_read_before_it(starts: list[int], tmp_path: Path) -> None:
    x = leaf(3.0)
    with OpCapture(mode="statistics"):
        y = x * 2
        z = y * 5

        def halve(gradient: Tensor) -> None:
            with DisableTorchFunction():  # unseen
                gradient.mul_(0.5)

        y.register_hook(halve)
        z.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0] * 4
    second, first = (
        line for line in lines(tmp_path) if "grad_inputs" in line and "mul" in line["op"]
    )
    assert [second["grad_inputs"][0]["max"], first["grad_outputs"][0]["max"]] == [5.0, 2.5]
    assert first["grad_inputs"][0]["max"] == 5.0


def test_a_gradient_that_is_written_elsewhere_says_so(starts: list[int], tmp_path: Path) -> None:
    a, b = leaf(1.0), leaf(2.0)
    with OpCapture(mode="statistics"):
        assert a.grad is None  # before something that is met for the first time all is read
        late = b * 3

        def spoil(_: Tensor) -> None:  # by then the other branch is done
            assert a.grad is not None
            with DisableTorchFunction():
                a.grad.zero_()

        late.register_hook(spoil)
        (a * 2 + late).sum().backward()
    products = [line for line in lines(tmp_path) if "grad_inputs" in line and "mul" in line["op"]]
    (early,) = (line for line in products if "skipped" in line["grad_inputs"][0])
    assert early["grad_inputs"][0]["skipped"] == "it was written before it was read"


def test_a_write_that_is_seen_comes_after_what_waits(starts: list[int], tmp_path: Path) -> None:
    a, b = leaf(1.0), leaf(2.0)
    with OpCapture(mode="statistics"):
        late = b * 3

        def spoil(_: Tensor) -> None:
            assert a.grad is not None
            a.grad.zero_()

        late.register_hook(spoil)
        (a * 2 + late).sum().backward()
    products = [line for line in lines(tmp_path) if "grad_inputs" in line and "mul" in line["op"]]
    assert sorted(line["grad_inputs"][0]["max"] for line in products) == [2.0, 3.0]


def test_a_tensor_is_reduced_once_where_a_call_has_it_twice(
    starts: list[int], tmp_path: Path
) -> None:
    x = torch.full((4,), 2.0, device="dipu")
    with OpCapture(mode="statistics"):
        torch.add(x, x)
    assert starts == [2]  # the argument, the result
    (line,) = lines(tmp_path)
    assert [one["max"] for one in (*line["inputs"], *line["outputs"])] == [2.0, 2.0, 4.0]


def test_what_cannot_be_written_does_not_stop_what_comes_later(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, asked = os.open("/dev/full", os.O_WRONLY), []

    class File:
        """Where the first write fails."""

        def __init__(self, own: Any) -> None:
            self.own = own

        def fileno(self) -> int:
            asked.append(1)
            number: int = self.own.fileno() if len(asked) > 1 else full
            return number

        def __getattr__(self, name: str) -> Any:
            return getattr(self.own, name)

    x = torch.ones(3, device="dipu")
    with OpCapture(mode="statistics", level="aten") as tool:
        store = tool._run.statistics
        assert isinstance(store, StatisticsStore)
        monkeypatch.setattr(store, "_file", File(store._file))
        until = time.monotonic() + 30
        while len(asked) < 3 and time.monotonic() < until:  # by a thread, which goes on
            x.neg()
    os.close(full)
    assert len(asked) > 2
    assert lines(tmp_path)[-1]["outputs"][0]["max"] == -1.0
    assert store.bytes == store.place.stat().st_size
    assert "No space left" in diagnostics.problems("OpCapture")[0].message


def test_calls_are_numbered_in_one_count(tmp_path: Path) -> None:
    x = torch.ones(3, device="dipu")
    first = next(interception.ids)
    with OpCapture(mode="hash", level="aten"):
        x.neg()
        with OpObserve(level="aten", ops="aten.abs.default"):
            x.abs()  # by Python
        x.exp()
    last = next(interception.ids)
    seen = [line["id"] for line in lines(tmp_path)]
    assert len(set(seen)) == len(seen) and first < min(seen) and max(seen) < last


def test_the_step_and_the_module_are_those_of_the_call(tmp_path: Path) -> None:
    class Größe(nn.Module):  # a path that is not ASCII
        def forward(self, x: Tensor) -> Tensor:
            return x.neg()

    outer, x = nn.Sequential(nn.Identity(), Größe()), torch.ones(3, device="dipu")
    outer.add_module("höhe", nn.ReLU())
    with OpCapture(mode="hash", level="aten"):
        for _ in range(2):
            outer(x)
            steps.step()
        steps.reset()
        outer(x)
    found = [(line["step"], line["module"]) for line in lines(tmp_path)]
    assert found == [(step, path) for step in (0, 1, 0) for path in ("1", "höhe")]


def stepped(folder: Path, foreach: bool) -> list[dict[str, Any]]:
    """The lines of two steps of an optimizer."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(4).to("dipu")) for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, foreach=foreach)
    for at, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, at + 1.0)
    with OpCapture(mode="statistics"):
        optimizer.step()
        optimizer.step()
    files = (folder / "op_tools_results/op_statistics_result").glob("*.jsonl")
    file = max(files, key=lambda one: one.stat().st_mtime_ns)
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizers_tensors_are_known_again_between_its_kernels(
    starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreach: bool
) -> None:
    calls = [line for line in stepped(tmp_path, foreach) if "outputs" in line]
    known = sum(starts)
    mentioned = sum(len(line["inputs"]) + len(line["outputs"]) for line in calls)
    assert known < 0.7 * mentioned
    monkeypatch.undo()  # the host reads them by itself
    expected = [line for line in stepped(tmp_path, foreach) if "outputs" in line]
    for line, other in zip(calls, expected, strict=True):
        assert line["op"] == other["op"]
        for side in ("inputs", "outputs"):
            for one, two in zip(line[side], other[side], strict=True):
                assert one["hash"] == two["hash"]
                assert one["norm"] == pytest.approx(two["norm"])


@pytest.mark.filterwarnings("ignore:.*verrid.*:UserWarning")
def test_a_write_that_nothing_counts_is_read_between_an_optimizers_kernels(
    starts: list[int], tmp_path: Path
) -> None:
    inplace = DispatchKeySet(DispatchKey.ADInplaceOrView)

    def lerp(tensors: list[Tensor], others: list[Tensor], weight: float) -> None:
        with _ExcludeDispatchKeyGuard(inplace):  # as CUDA's own
            for tensor, other in zip(tensors, others, strict=True):
                tensor.lerp_(other, weight)

    weight = nn.Parameter(torch.ones(4, device="dipu"))
    optimizer = torch.optim.AdamW([weight], lr=0.5, foreach=True)
    weight.grad = torch.full_like(weight, 8.0)
    with _scoped_library("aten", "IMPL") as library:
        library.impl("_foreach_lerp_.Scalar", lerp, "PrivateUse1")
        with OpCapture(mode="statistics"):
            optimizer.step()
        mean = optimizer.state[weight]["exp_avg"]
        assert mean._version == 0
    (line,) = (line for line in lines(tmp_path) if "lerp" in line["op"])
    assert [line["inputs"][0]["max"], line["outputs"][0]["max"]] == [0.0, mean.max().item()]


def test_what_is_written_unseen_after_an_optimizers_step_is_read_again(
    starts: list[int], tmp_path: Path
) -> None:
    weight = nn.Parameter(torch.ones(4, device="dipu"))
    optimizer = torch.optim.SGD([weight], lr=0.5, foreach=True)
    weight.grad = torch.ones_like(weight)
    with OpCapture(mode="statistics"):
        optimizer.step()
        with DisableTorchFunction():  # not counted by the parameter either
            weight.data.fill_(7.0)
        weight.neg()
    step, negated = (line for line in lines(tmp_path) if "outputs" in line)
    assert step["outputs"][0]["max"] == 0.5
    assert negated["inputs"][0]["max"] == 7.0
