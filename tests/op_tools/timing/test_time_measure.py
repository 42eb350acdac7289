"""OpTimeMeasure: forward and whole backward of each call, by events or waiting, in few bytes."""

from __future__ import annotations

import csv
import gc
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from deeplink.errors import SettingError
from op_tools.core import tool_errors
from op_tools.core.call import Call
from op_tools.core.collectives import Collective
from op_tools.timing import clock, roofline
from op_tools.timing.aggregate import Times, call_text
from op_tools.timing.tool import OpTimeMeasure
from tests.op_tools.waiting import until

FOLDER = Path("op_tools_results/op_time_measure_result")


def rows() -> list[dict[str, str]]:
    """The rows of the one file that was written."""
    (path,) = FOLDER.glob("*.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def layer() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.ones(2, 3, 4, device="dipu", requires_grad=True)
    w = torch.ones(5, 4, device="dipu", requires_grad=True)
    return x, w, torch.ones(5, device="dipu", requires_grad=True)


def test_the_file_has_one_header_and_a_row_for_each_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, w, b = layer()
    with op_tools.OpTimeMeasure():
        F.linear(x, w, bias=b).sum().backward()
        with torch.no_grad():
            torch.relu(w)
    linear, total, relu = rows()
    assert list(linear) == [
        *("name", "forward_id", "forward_elasped", "backward_elasped", "unit"),
        *("input", "output", "grad_inputs", "grad_outputs"),
    ]
    assert linear["name"] == "torch.nn.functional.linear" and linear["unit"] == "ms"
    assert linear["input"] == "float32(2, 3, 4), float32(5, 4), bias=float32(5)"
    assert linear["output"] == linear["grad_outputs"] == "float32(2, 3, 5)"
    assert linear["grad_inputs"] == "float32(2, 3, 4), float32(5, 4), float32(5)"
    assert total["name"] == "torch.Tensor.sum"
    for row in (linear, total):
        assert re.fullmatch(r"\d+\.\d{8}", row["forward_elasped"])
    assert float(linear["backward_elasped"]) > 0
    assert float(total["backward_elasped"]) == 0  # its gradient is a view
    assert (relu["backward_elasped"], relu["grad_inputs"], relu["grad_outputs"]) == ("-",) * 3
    assert int(linear["forward_id"]) < int(total["forward_id"]) < int(relu["forward_id"])
    (path,) = FOLDER.glob("*.csv")
    output = capsys.readouterr().out
    assert re.fullmatch(r"op_elasped_info_pid\d+_\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.csv", path.name)
    assert f"Timings written to {path}" in output.replace("\n", "")
    assert re.search(r"tool cost: \d+\.\d ms of \d+\.\d ms, \d+ us for each of 3 calls", output)


def test_rows_are_written_while_it_runs_and_forward_meets_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "5")
    x, w, b = layer()
    made: list[Tensor] = []

    def step() -> None:
        made.append(F.linear(x, w, b).sum())
        made[-1].backward()

    def written() -> int:
        return sum(path.read_bytes().count(b"\n") for path in FOLDER.glob("*.csv"))

    tool = op_tools.OpTimeMeasure(ops="torch.nn.functional.linear").start()
    until(lambda: written() > 1 + 5, step)  # by a thread, after the header
    tool.end()
    assert len(rows()) == len(made)
    assert all(row["backward_elasped"] != "-" for row in rows())
    assert len({row["forward_id"] for row in rows()}) == len(made)


@pytest.mark.parametrize("mode", ["events", "sync"])
def test_copies_to_the_device_are_timed_and_calls_on_the_host_are_not(mode: str) -> None:
    x = torch.ones(3)
    with op_tools.OpTimeMeasure(mode=mode):
        x.to("dipu")
        x.to(torch.device("dipu"), torch.float64)
        x.add(1).to(torch.float64)
    assert [(row["name"], row["input"]) for row in rows()] == [
        ("torch.Tensor.to", "float32(3), dipu"),
        ("torch.Tensor.to", "float32(3), dipu, torch.float64"),
    ]


def test_the_whole_backward_of_a_call_is_timed_and_no_more() -> None:
    # given a composite whose last node alone does next to nothing
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            time.sleep(0.05)
            return grad

    def composite(x: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(composite, (x,), x)  # type: ignore[no-any-return]
        return Slow.apply(Slow.apply(x)).view(-1)  # type: ignore[no-any-return,no-untyped-call]

    x = torch.ones(4, device="dipu", requires_grad=True)
    with OpTimeMeasure(mode="sync") as tool:
        (composite(x) * 2).sum().backward()
    found = {line.name.rsplit(".", 1)[-1]: line for line in tool.summary()}
    assert found["composite"].backward.total >= 100
    assert found["mul"].backward.total < found["composite"].backward.total


def test_a_graph_that_is_thrown_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "4")
    x, w, b = layer()
    with OpTimeMeasure() as tool:
        for _ in range(20):
            F.linear(x, w, b)  # no backward will ever come
        run = tool._run
        native = run.native if run is not None else None
        assert run is not None and native is not None
        until(lambda: len(run.rows) + native.pending < 12)  # a thread asks
    assert len(rows()) == 20


@pytest.mark.parametrize(
    "name", ["OpTimeMeasure", "OpCapture", "OpAutoCompare", "OpOverflowCheck", "OpObserve"]
)
def test_nothing_of_the_graph_is_kept_alive(name: str) -> None:
    with getattr(op_tools, name)():
        x = torch.ones(64, device="dipu", requires_grad=True)
        y = torch.ones(64, device="dipu") * x
        y.add_(1)  # its node and its argument are one
        dead = weakref.ref(y)
        del y
        gc.collect()
        assert dead() is None


def test_backward_after_the_stop_is_quiet() -> None:
    x, w, b = layer()
    with OpTimeMeasure() as tool:
        y = F.linear(x, w, b)
    y.sum().backward(retain_graph=True)
    assert x.grad is not None
    assert tool.summary()[0].backward.count == 0
    assert tool_errors.problems() == []


def test_events_wait_for_nothing_and_sync_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    plain = torch.dipu.current_stream

    class Counting:
        def synchronize(self) -> None:
            waits.append(1)

    monkeypatch.setattr(torch.dipu, "current_stream", lambda device=None: Counting())
    x = torch.ones(4, device="dipu")
    with OpTimeMeasure():
        x + x
    assert waits == []
    monkeypatch.setenv("OP_TIME_MEASURE_MODE", "sync")
    with OpTimeMeasure():
        x + x
    assert len(waits) == 2
    assert plain is not torch.dipu.current_stream


def test_a_device_without_timed_events_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(device: torch.device) -> clock.EventClock:
        raise RuntimeError("no events")

    monkeypatch.setattr(clock, "_torch_events", none)
    monkeypatch.setattr(clock, "_module_events", none)
    with OpTimeMeasure():
        torch.ones(4, device="dipu") + 1
    assert "dipu has no events with times: each operator is synchronized" in (
        capsys.readouterr().out.replace("\n", " ")
    )
    assert len(rows()) == 2


def test_the_cpu_can_be_selected() -> None:
    with OpTimeMeasure(devices=["cpu"]) as tool:
        (torch.ones(8, requires_grad=True) * 2).sum().backward()
    assert {line.name for line in tool.summary()} >= {"torch.Tensor.mul", "torch.Tensor.sum"}


def test_summaries_by_op_shape_module_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to("dipu")
    x = torch.ones(2, 4, device="dipu")
    with OpTimeMeasure() as tool:
        for _ in range(3):
            y = model(x)
            y.sum().backward()
    by_op = {line.name: line for line in tool.summary("op")}
    assert by_op["torch.nn.functional.linear"].calls == 6
    assert by_op["torch.nn.functional.linear"].backward.count == 6
    shapes = [line.name for line in tool.summary("shape")]
    assert "torch.nn.functional.linear float32(2, 4), float32(8, 4), float32(8)" in shapes
    modules = {line.name: line.calls for line in tool.summary("module")}
    assert (modules["0"], modules["1"], modules["2"]) == (3, 3, 3)
    assert any(line.name.startswith("test_time_measure.py:") for line in tool.summary("line"))
    shares = [line.share for line in tool.summary("op")]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    output = capsys.readouterr().out
    for title in ("Operators, the slowest first", "By module", "By line", "By the shapes"):
        assert title in output


def test_kernels_of_backward_and_optimizer_at_the_aten_level() -> None:
    w = torch.ones(4, 4, device="dipu", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    with OpTimeMeasure(level="aten") as tool:
        (w @ w).sum().backward()
        optimizer.step()
    found = {line.name: line for line in tool.summary()}
    assert found["aten.mm.default"].forward.count == 1
    assert found["aten.mm.default"].backward.count == 2
    assert found["aten.mm.default"].flops == 3 * 2 * 4**3
    assert any("add" in name for name in found)


def test_modules_at_the_module_level() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).to("dipu")
    with OpTimeMeasure(level="module") as tool:
        model(torch.ones(2, 4, device="dipu")).sum().backward()
    found = {line.name: line for line in tool.summary()}
    assert found["torch.nn.modules.container.Sequential"].share == 1
    assert found["torch.nn.modules.linear.Linear"].backward.count == 1
    (linear,) = [row for row in rows() if row["name"].endswith("Linear")]
    assert linear["input"] == "float32(2, 4)"  # without its parameters
    assert linear["grad_inputs"] == ""  # the input needs no gradient, the parameters are its own


def test_no_row_is_lost_between_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "7")
    x = torch.ones(4, device="dipu")

    def work() -> None:
        for _ in range(100):
            torch.exp(x)

    with OpTimeMeasure(ops="torch.exp") as tool:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tool.summary()[0].calls == 400
    assert len({row["forward_id"] for row in rows()}) == 400


def test_retained_graphs_add_up() -> None:
    x = torch.ones(4, device="dipu", requires_grad=True)
    with OpTimeMeasure(ops="torch.exp") as tool:
        y = torch.exp(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    (line,) = tool.summary()
    assert (line.forward.count, line.backward.count) == (1, 1)
    assert line.backward.total > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "evens"}, r"mode='evens'\): no such choice, did you mean 'events'\?"),
        ({"tracee": "x"}, "OpTimeMeasure has no option 'tracee'"),
    ],
)
def test_bad_options_are_reported_at_the_start(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        OpTimeMeasure(**given).start()


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "file"))
    with pytest.raises(SettingError, match="cannot be written"):
        OpTimeMeasure().start()


def test_a_file_that_cannot_be_written_later_costs_the_file_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    tool = OpTimeMeasure().start()
    torch.ones(4, device="dipu") + 1
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        tool.stop()
    assert tool.summary()
    assert "No space left on device" in capsys.readouterr().out


def test_the_classic_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    x = torch.ones(4, device="dipu", requires_grad=True)
    with OpTimeMeasure():
        torch.exp(x).sum().backward()
    output = capsys.readouterr().out
    assert "apply OpTimeMeasureHook on torch.exp" in output
    assert re.search(r"\| +name +\| forward_id \| forward_elasped \| unit \|", output)
    assert re.search(r"\| +name +\| forward_id \| backward_elasped \| unit \|", output)
    assert re.search(
        r"torch\.exp grad_outputs \[0\]\[0\] \| +\(4,\) .*\| float32 \| dipu:0", output
    )
    assert re.search(r"torch\.exp grad_inputs \[0\]\[0\]", output)
    assert re.search(
        r"\| +name +\| forward_id \| forward_elasped \| backward_elasped \| unit \|", output
    )


def test_an_unknown_operator_is_refused_at_the_start() -> None:
    with pytest.raises(SettingError, match=r"no operator is named 'torch\.expp'"):
        OpTimeMeasure(ops="torch.expp").start()
    assert not list(FOLDER.glob("*.csv"))


# What a call has to do.


def made(name: str, func: Any, *args: Any, **kwargs: Any) -> tuple[Call, Any]:
    return Call(1, name, func, args, kwargs), func(*args, **kwargs)


def test_operations_at_the_api_level_are_those_of_the_kernels() -> None:
    x, w = torch.ones(2, 3, 4, requires_grad=True), torch.ones(5, 4, requires_grad=True)
    assert roofline.flops(*made("torch.nn.functional.linear", F.linear, x, w)) == (240.0, 480.0)
    assert roofline.flops(*made("torch.nn.functional.linear", F.linear, x.detach(), w)) == (
        240,
        240,
    )
    a, b = torch.ones(6, 2, 3), torch.ones(6, 3, 5)
    assert roofline.flops(*made("torch.Tensor.matmul", torch.matmul, a, b)) == (360.0, 0.0)
    image, kernel = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)
    expected = 2.0 * 4 * 6 * 6 * 3 * 9
    assert roofline.flops(*made("torch.conv2d", F.conv2d, image, kernel))[0] == expected
    q = torch.ones(2, 4, 8, 16)
    attention = F.scaled_dot_product_attention
    found = roofline.flops(
        *made("torch.nn.functional.scaled_dot_product_attention", attention, q, q, q)
    )
    assert found[0] == 2 * 2.0 * 2 * 4 * 8 * 8 * 16


def test_operations_at_the_aten_level_are_torchs_own() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    a, b = torch.ones(4, 8), torch.ones(8, 16)
    with FlopCounterMode(display=False) as counter:
        result = torch.mm(a, b)
    call = Call(1, "aten.mm.default", torch.ops.aten.mm.default, (a, b), {}, "aten")
    assert roofline.flops(call, result) == (counter.get_total_flops(), 0.0)


def test_bytes_are_read_once_and_written_once() -> None:
    x = torch.ones(256)
    assert roofline.bytes_moved(*made("torch.Tensor.add", torch.add, x, x)) == 3 * 1024
    assert roofline.bytes_moved(*made("torch.Tensor.view", x.view, 16, 16)) == 0
    table, at = torch.ones(1000, 4), torch.zeros(2, dtype=torch.long)
    call = made("torch.nn.functional.embedding", F.embedding, at, table)
    assert roofline.bytes_moved(*call) == 2 * 2 * 4 * 4


# Numbers.


def test_percentiles_are_within_one_percent_in_bounded_memory() -> None:
    times = Times()
    values = [0.001 * exp(0.0005 * i) for i in range(20_000)]
    for value in reversed(values):
        times.add(value)
    assert times.count == 20_000 and len(times.classes) < 600
    assert times.percentile(0.5) == pytest.approx(values[9_999], rel=0.011)
    assert times.percentile(0.95) == pytest.approx(values[18_999], rel=0.011)
    assert (times.first, times.warm) == (values[-1], values[0])


def test_the_first_call_is_apart() -> None:
    times = Times()
    for value in (50.0, 2.0, 1.0, 3.0):
        times.add(value)
    assert (times.first, times.warm, times.mean) == (50.0, 1.0, 14.0)


def test_a_percentile_lies_among_the_times() -> None:
    times = Times()
    for _ in range(5):
        times.add(2.6821)
    assert times.percentile(0.5) == times.percentile(0.95) == 2.6821
    times.add(0.0)
    assert times.percentile(0.01) == 0.0


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)]
)
def test_bus_bandwidth_counts_as_nccl_tests_do(kind: str, factor: float) -> None:
    assert Collective(kind, 1024, 4, False).bus_factor == factor


RANKS = """
import sys, torch, torch.distributed as dist, torch_dipu, op_tools
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]),
                        world_size=2)
x = torch.ones(1024)
with op_tools.OpTimeMeasure(devices=["cpu"]) as tool:
    dist.all_reduce(x)
    dist.all_gather([torch.empty(1024), torch.empty(1024)], x)
    dist.all_reduce(x, async_op=True).wait()
    dist.barrier()
for group in tool._last[0]:
    c = group.collective
    if c is not None:
        print("FOUND", c.kind, c.bytes, c.size, c.asynchronous, group.forward.total > 0)
dist.destroy_process_group()
"""


def test_collectives_with_bytes_and_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    line = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "store")]
    others = subprocess.Popen([*line, "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wide = {**os.environ, "COLUMNS": "160"}
    done = subprocess.run(
        [*line, "0"], capture_output=True, text=True, timeout=300, check=False, env=wide
    )
    others.wait(timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    assert "all_reduce 4096 2 False True" in found
    assert "all_gather 8192 2 False True" in found
    assert "all_reduce 4096 2 True True" in found
    assert "Collectives" in done.stdout and "bus GB/s" in done.stdout


def test_numbers_that_are_equal_but_of_other_types_are_distinguished() -> None:
    texts = [call_text("torch.add", (torch.ones(2), number), {}) for number in (1, 1.0, True)]
    assert texts == [f"float32(2), {number}" for number in ("1", "1.0", "True")]
