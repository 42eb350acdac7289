"""The native part of OpTimeMeasure: it times as Python does, and stays out of the program's way."""

from __future__ import annotations

import csv
import gc
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from op_tools.core import native_library, tool_errors
from op_tools.timing import console
from op_tools.timing.tool import OpTimeMeasure
from tests.op_tools.waiting import until

CELLS = ("name", "unit", "input", "output", "grad_inputs", "grad_outputs")


class Model(nn.Module):
    """Views, many outputs, a write in place, a list, a keyword, a branch without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(2, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.one(x).view(-1, 3, 2).unbind(1)
        mixed = torch.cat([q * k, v[:, :1].expand(-1, 1)], dim=1)[:, :2].relu_()
        best, _ = mixed.max(dim=1, keepdim=True)
        with torch.no_grad():
            mixed.sort().values.sum()
        return self.norm(self.two(mixed + best)) + checkpoint(torch.sin, x, use_reentrant=False)


def trained(tool: OpTimeMeasure) -> tuple[list[float], list[str]]:
    """The losses of a few steps, and the rows of the file without ids and times."""
    torch.manual_seed(0)
    model = Model().to("dipu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(5, 4).to("dipu")
    losses = []
    with tool:
        for _ in range(4):
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, rows()


def rows() -> list[str]:
    (path,) = Path("op_tools_results/op_time_measure_result").glob("*.csv")
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    path.unlink()
    assert [int(row["forward_id"]) for row in found] == sorted(int(r["forward_id"]) for r in found)
    backward = [row["backward_elasped"] != "-" for row in found]
    return [
        " | ".join([*(row[cell] for cell in CELLS), str(timed)])
        for row, timed in zip(found, backward, strict=True)
    ]


def test_the_rows_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    natively = OpTimeMeasure()
    losses, found = trained(natively)
    monkeypatch.setattr(native_library, "helper", lambda: None)
    by_python = OpTimeMeasure()
    plain_losses, plain = trained(by_python)
    assert losses == plain_losses
    assert Counter(found) == Counter(plain) and found == plain
    lines = [{line.name: line.forward.count for line in t.summary()} for t in (natively, by_python)]
    assert lines[0] == lines[1]
    by_line = [
        {(line.name, line.backward.count) for line in t.summary("line")}
        for t in (natively, by_python)
    ]
    assert by_line[0] == by_line[1]
    assert tool_errors.problems() == []


def test_most_calls_go_past_python(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = OpTimeMeasure.before
    monkeypatch.setattr(
        OpTimeMeasure, "before", lambda self, call: (seen.append(call.name), plain(self, call))[1]
    )
    a = torch.ones(4, device="dipu", requires_grad=True)
    with OpTimeMeasure() as tool:
        for _ in range(10):
            torch.mul(a, 2).sum().backward()
    assert seen == []
    assert {(line.name, line.forward.count) for line in tool.summary()} == {
        ("torch.mul", 10),
        ("torch.Tensor.sum", 10),
    }


def test_an_error_of_the_operator_is_the_programs() -> None:
    a, b = torch.ones(4, device="dipu"), torch.ones(4, device="dipu").tolist()
    with OpTimeMeasure() as tool:
        for _ in range(3):
            torch.add(a, 1)
        for _ in range(3):
            with pytest.raises(IndexError):
                a[7]
            with pytest.raises(TypeError):
                torch.add(a, b)
        last = torch.add(a, 1)
    assert last.tolist() == [2.0] * 4
    assert {(line.name, line.forward.count) for line in tool.summary()} == {("torch.add", 4)}
    assert tool_errors.problems() == []


def test_a_second_backward_a_dead_graph_and_one_after_the_stop() -> None:
    a = torch.ones(4, device="dipu", requires_grad=True)
    with OpTimeMeasure() as tool:
        for _ in range(3):
            y = torch.mul(a, a)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        late = torch.mul(a, a)
        dead = weakref.ref(torch.mul(a, a))
        gc.collect()
        assert dead() is None
    late.sum().backward()
    line = next(line for line in tool.summary() if line.name == "torch.mul")
    assert (line.forward.count, line.backward.count) == (5, 1)
    assert a.grad is not None and a.grad.tolist() == [6.0] * 4


def test_threads_and_modules_and_lines() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("dipu")
    x = torch.ones(1, 2, device="dipu")

    def work() -> None:
        for _ in range(50):
            layers(x)

    with OpTimeMeasure() as tool:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = {(line.name, line.forward.count) for line in tool.summary("module")}
    assert found == {("0", 150), ("1", 150)}
    (line,) = tool.summary("line")
    assert line.forward.count == 300 and "test_timer" in line.name


class Doubled(torch.autograd.Function):
    """An operator that its backward pass calls for itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.add(grad, grad)


def test_what_the_backward_pass_calls_is_of_the_module_that_went_forward() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            doubled: torch.Tensor = Doubled.apply(torch.neg(x))
            return doubled

    model = nn.Sequential(Twice()).to("dipu")
    x = torch.ones(2, device="dipu", requires_grad=True)
    with OpTimeMeasure(ops="torch.neg,torch.add") as tool:
        for _ in range(4):
            model(x).sum().backward()
    (line,) = tool.summary("module")
    assert line.name == "0" and line.backward.count == 8


def test_a_view_takes_no_time_of_the_device() -> None:
    a = torch.ones(4, 2, device="dipu", requires_grad=True)
    with OpTimeMeasure(ops="torch.Tensor.transpose,torch.Tensor.expand") as tool:
        for _ in range(3):
            (a.transpose(0, 1).sum() + a[:1].expand(4, 2).sum()).backward()
    found = {line.name.rsplit(".", 1)[-1]: line for line in tool.summary()}
    assert [found[name].forward.warm for name in ("transpose", "expand")] == [0, 0]
    assert found["transpose"].backward.warm == 0 and found["transpose"].backward.count == 3
    assert found["expand"].backward.warm > 0  # the gradient is a sum


def test_an_expand_that_changes_nothing_takes_no_time_in_the_backward_pass() -> None:
    a = torch.ones(4, 2, device="dipu", requires_grad=True)
    with OpTimeMeasure(ops="torch.Tensor.expand") as tool:
        for _ in range(3):
            a.expand(4, 2).sum().backward()
    (line,) = tool.summary()
    assert line.backward.count == 3 and line.backward.warm == 0


def test_a_second_backward_pass_long_after_the_first_is_attributed_correctly() -> None:
    a = torch.ones(4, device="dipu", requires_grad=True)
    other = torch.ones(4, device="dipu")
    with OpTimeMeasure(ops="torch.mul,torch.add") as tool:
        for _ in range(3):
            y = torch.mul(a, a).sum()
        y.backward(retain_graph=True)
        for _ in range(600):  # what is kept of a call is used again for others
            torch.add(other, other)
        y.backward()
        for _ in range(600):
            torch.add(other, other)
    found = {line.name: (line.forward.count, line.backward.count) for line in tool.summary()}
    assert found == {"torch.mul": (3, 1), "torch.add": (1200, 0)}
    assert len(rows()) == 1203


def test_times_are_requested_before_the_file_is_written() -> None:
    a = torch.ones(4, device="dipu")
    made: list[torch.Tensor] = []
    with OpTimeMeasure() as tool:
        native = tool._run.native if tool._run is not None else None
        assert native is not None
        until(  # a thread asks; their events are used again
            lambda: native.pending < len(made) - 100,
            lambda: made.extend(torch.add(a, a) for _ in range(60)),
        )
        assert tool.started.applied == len(made)
        assert [line.forward.count for line in tool.summary()] == [len(made)]
    assert len(rows()) == len(made)


def test_a_gradient_that_is_only_given_on_takes_no_time() -> None:
    x = torch.ones(4, 3, device="dipu", requires_grad=True)
    with OpTimeMeasure() as tool:
        for _ in range(4):
            made = torch.mul(torch.add(x, 1.0), 2.0).reshape(12)
            torch.add(made, torch.ones(2, 12, device="dipu")).sum().backward()

    def least(start: str) -> float:
        (found,) = [line for line in tool.summary("shape") if line.name.startswith(start)]
        assert found.backward.count == 4
        return found.backward.least

    assert least("torch.add float32(4, 3)") == 0
    assert least("torch.add float32(12)") > 0  # it is summed over what it was repeated for
    assert least("torch.Tensor.reshape") == 0
    assert least("torch.mul") > 0


def test_what_is_over_is_written_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "50")
    a = torch.ones(4, device="dipu")
    writers = set()
    plain = console.Csv.write

    def write(self: console.Csv, lines: bytes) -> None:
        writers.add(threading.current_thread().name)
        plain(self, lines)

    monkeypatch.setattr(console.Csv, "write", write)
    made: list[torch.Tensor] = []
    with OpTimeMeasure():
        until(
            lambda: "op_tools_rows" in writers,
            lambda: made.extend(torch.add(a, a) for _ in range(60)),
        )
    assert writers == {"op_tools_rows", threading.current_thread().name}
    assert len(rows()) == len(made)


def test_a_file_that_cannot_be_written_is_reported_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "50")
    a, plain, failed = torch.ones(4, device="dipu"), console.Csv.write, []

    def write(self: console.Csv, lines: bytes) -> None:
        if not failed:
            failed.append(len(lines))
            raise OSError("no space")
        plain(self, lines)

    monkeypatch.setattr(console.Csv, "write", write)
    made: list[torch.Tensor] = []
    with OpTimeMeasure() as tool:
        until(lambda: failed, lambda: made.extend(torch.add(a, a) for _ in range(60)))
    assert [line.forward.count for line in tool.summary()] == [len(made)]
    assert any("no space" in str(problem) for problem in tool_errors.problems())


def test_a_run_is_let_go_of() -> None:
    a = torch.ones(4, device="dipu")
    tool = OpTimeMeasure()
    with tool:
        for _ in range(3):
            torch.add(a, a)
        assert tool._run is not None
        run = weakref.ref(tool._run)
    gc.collect()
    assert run() is None


class Routed(nn.Module):
    """Calls its layers in the order that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, order: list[tuple[int, torch.Tensor]]) -> None:
        for at, x in order:
            self.layers[at](x).sum() if at else self.layers[at](x)


def test_calls_that_come_in_another_order_than_before_are_distinguished() -> None:
    model = Routed().to("dipu")
    small, large = torch.ones(2, device="dipu"), torch.ones(3, 2, device="dipu")
    with OpTimeMeasure() as tool:
        model([(0, small), (1, small), (0, large), (1, large)] * 2)
        model([(1, small), (0, large), (0, small), (0, small), (1, small), (1, large), (0, large)])
    modules = {(line.name, line.forward.count) for line in tool.summary("module")}
    assert modules == {("layers.0", 8), ("layers.1", 7), ("Routed", 7)}  # the sums are its own
    shapes = Counter(row.split(" | ")[0] + row.split(" | ")[3] for row in rows())
    assert sorted(shapes.values()) == [7, 7, 8]  # of sums, and of products by what they give
