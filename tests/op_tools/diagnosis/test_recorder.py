"""The flight recorder: bounded, readable at any moment, silent about a healthy run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from op_tools import FlightRecorder, OpCapture, OpFallback
from op_tools.core import step_counter, tool_errors
from op_tools.diagnosis.flight_recorder import measurements, stacks
from op_tools.diagnosis.flight_recorder.measurements import Budget, Patience, Signals, Usual
from op_tools.diagnosis.flight_recorder.ring_file import Ring
from op_tools.diagnosis.report import readers
from op_tools.tensors import statistics
from tests import warm
from tests.op_tools import small

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(2, 4)
import os, sys
for step in range(40):
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {act}
"""


# What the program does after a step: its fork has a recorder of its own, and is killed.
ENDS = """if step == 0:
        child = os.fork()
        if child == 0:
            import op_tools
            os.environ["OP_TOOLS_RESULTS"] += "/killed"
            op_tools.FlightRecorder().start()
        else:
            os.waitpid(child, 0)
    if child == 0 and step == 33:
        import time
        time.sleep(1.5)
    if child == 0 and step == 34:
        os.kill(os.getpid(), 9)
    if child != 0 and step == 5:
        os.kill(os.getpid(), 15)"""


def lines(folder: Path) -> list[dict[str, Any]]:
    """All that the ring holds, in its order."""
    files = sorted(folder.glob("recorder/*.[01].jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a recorder writes; afterwards no hook of a recorder is left."""
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    hooks = len(nn.modules.module._global_forward_hooks)
    yield tmp_path
    assert len(nn.modules.module._global_forward_hooks) == hooks


def test_a_recorded_run_is_the_same_run_and_nothing_is_reported(folder: Path) -> None:
    plain = small.train(12)
    with FlightRecorder() as recorder:
        watched = small.train(12)
    assert plain["losses"] == watched["losses"]
    for key in ("gradients", "weights", "random"):
        for a, b in zip(plain[key], watched[key], strict=True):  # type: ignore[call-overload]
            assert torch.equal(a, b)
    assert (recorder.steps, recorder.events) == (12, [])
    assert tool_errors.problems("FlightRecorder") == []
    found = [line for line in lines(folder) if "step" in line]
    assert [line["step"] for line in found] == list(range(12))
    assert found[3]["loss"] == pytest.approx(plain["losses"][3])  # type: ignore[index]


def test_a_nan_is_reported_kept_and_followed_by_whole_steps(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.dipu.quirk("nan", "addmm", call=37), FlightRecorder() as recorder:
        small.train(20)
    (event,) = recorder.events
    assert re.match(r"nan: the loss is not finite in step \d+.*; first NaN produced by add", event)
    (copy,) = recorder.ring.copies
    assert '"event":"nan"' in copy.read_text()
    (told,) = (line for line in lines(folder) if "event" in line)
    assert re.match(r"deeplink why-nan --steps \d+- -- python ", told["next"])
    assert told["next"] in capsys.readouterr().err.replace("\n", " ")
    whole = [line for line in lines(folder) if line.get("modules") and line.get("loss") is None]
    assert {"first.weight", "last.bias"} <= set(whole[0]["grads"])
    content = readers.read(folder)
    assert content.findings[0].title.startswith("A NaN in the run: the ")
    assert [chart.title for chart in content.charts][:2] == ["Loss", "Time of a step"]


def test_a_bad_gradient_is_reported_with_how_far_it_came(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "SHARE", 100.0)  # time enough for every gradient
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with FlightRecorder() as recorder:
        for step in range(20):
            made = model[:2](torch.ones(1, 2))
            if step == 15:
                made.register_hook(lambda grad: grad * float("nan"))
            model(torch.ones(1, 2)).add(model[2](made)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (event,) = recorder.events
    assert (
        "4 of 6 gradients are bad, that of 1.bias the last of them; that of 2.weight is good"
        in event
    )


def test_time_that_other_programs_took_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"perf_counter_ns": 0, "process_time_ns": 0}
    for name in clocks:
        monkeypatch.setattr(measurements, name, lambda name=name: clocks[name])
    budget = Budget()
    clocks.update(perf_counter_ns=10**9, process_time_ns=10**8)  # a tenth of it was the program's
    budget.step()
    budget.enter()
    clocks["perf_counter_ns"] += int(0.9 * measurements.SHARE * 10**8)
    assert budget.open
    clocks["perf_counter_ns"] += int(0.2 * measurements.SHARE * 10**8)
    assert not budget.open


def test_a_leap_of_the_loss_is_reported() -> None:
    usual = Usual()
    assert not any(usual.leaps(2.0 + 0.01 * (i % 3)) for i in range(40))
    assert usual.leaps(9.0)
    assert not usual.leaps(2.0)


def test_it_stays_within_its_bound(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "recorder_x", 64 << 10)
    for i in range(2000):
        ring.add({"step": i, "text": "x" * 50})
        if i % 500 == 0:
            ring.keep(f"event{i}")
    ring.add({"step": -1, "text": "y" * (64 << 10)})  # too long by itself
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total <= 64 << 10
    assert ring.lost == 1
    last = ring.paths[-1].read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 1999


def test_a_full_disk_costs_lines_and_is_reported(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "recorder_x", 64 << 10)
    ring.add({"step": 0})
    assert ring._file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, ring._file)
    ring.add({"step": 1})
    os.close(full)
    ring.close()
    assert (ring.lost, ring.failed) == (1, "No space left on device")


def run(folder: Path, act: str, **more: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(act=act))
    environment = {**os.environ, "OP_TOOLS_RUN": "recorder", "OP_TOOLS_RESULTS": str(folder)}
    return warm.run([str(program)], environment | more, warn="ignore")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that ends by SIGTERM, and before that a second recorder by kill -9 in a fork."""
    folder = tmp_path_factory.mktemp("ended")
    assert run(folder, ENDS).returncode == -signal.SIGTERM
    return folder


def test_after_kill_9_every_line_is_there_and_the_page_says_so(ended: Path) -> None:
    found = [line for line in lines(ended / "killed") if "step" in line]
    assert found[-1]["step"] >= 30
    content = readers.read(ended / "killed")
    assert content.findings[0].title.startswith("The recorder has no end")


def test_a_signal_leaves_its_event_and_still_ends_the_program(ended: Path) -> None:
    (event,) = [line for line in lines(ended) if "event" in line]
    assert (event["event"], event["text"], event["step"]) == ("signal", "SIGTERM", 6)


def test_an_exception_leaves_its_event_and_is_shown_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    with FlightRecorder() as recorder:
        sys.excepthook(ValueError, ValueError("here"), None)
    assert recorder.events == ["exception: ValueError: here"]
    assert shown[0][0] is ValueError


def test_of_a_deep_error_the_programs_own_line_is_kept() -> None:
    """torch has more frames between two modules than are shown."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(3))
    kept = stacks.of_error(caught.tb)
    assert "test_recorder.py" in kept[0]
    assert "F.linear" in kept[-1]
    assert stacks.site(kept, innermost_first=False).endswith(f":{caught.tb.tb_lineno}")


def test_memory_is_there_however_short_the_steps_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "open", False)
    monkeypatch.setattr("op_tools.diagnosis.flight_recorder.recorder.MEMORY_AT_LEAST", 5)
    with FlightRecorder():
        small.train(12)
    assert [line["step"] for line in lines(folder) if "memory" in line] == [0, 5, 10]


def test_a_hang_is_reported_with_what_every_thread_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_tools.diagnosis.flight_recorder.recorder.PERIOD", 0.02)
    monkeypatch.setattr("deeplink.settings.OP_RECORDER_HANG", _Seconds(0.1))
    with FlightRecorder() as recorder:
        until = time.monotonic() + 20
        while not recorder.events and time.monotonic() < until:
            time.sleep(0.02)
    assert recorder.events[0].startswith("hang: no step for 0 s, after 0")
    (event,) = [line for line in lines(folder) if "event" in line]
    assert event["stack"][0].startswith("Thread ")  # the main one; the recorder's is left out
    assert "test_recorder.py" in event["stack"][1]
    assert not any("of_threads" in text for text in event["stack"])
    (finding,) = readers.read(folder).findings
    assert "/test_recorder.py:" in finding.site


class _Seconds:
    def __init__(self, value: float) -> None:
        self._value = value

    def get(self) -> float:
        return self._value


def test_nothing_of_it_stays_behind(folder: Path) -> None:
    before = sys.excepthook, signal.getsignal(signal.SIGTERM)
    hooks = len(nn.modules.module._global_forward_hooks)
    with FlightRecorder():
        assert sys.excepthook is not before[0]
    assert (sys.excepthook, signal.getsignal(signal.SIGTERM)) == before
    assert len(nn.modules.module._global_forward_hooks) == hooks


def test_where_the_host_does_not_see_the_memory_figures_come_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = small.train(12)
    monkeypatch.setattr(statistics, "is_seen", lambda tensor: tensor.device.type == "cpu")
    with FlightRecorder() as recorder:
        watched = small.train(12)
    assert plain["losses"] == watched["losses"]
    assert (recorder.steps, recorder.events) == (12, [])
    assert tool_errors.problems("FlightRecorder") == []
    found = [line for line in lines(folder) if "step" in line]
    assert [line["loss"] for line in found] == pytest.approx(plain["losses"])
    with torch.dipu.quirk("nan", "addmm", call=37), FlightRecorder() as recorder:
        small.train(20)
    assert recorder.events[0].startswith("nan: the ")


def test_losses_of_a_device_are_requested_together_and_by_their_values() -> None:
    taken = Signals()
    lines: list[dict[str, Any]] = [{} for _ in range(4)]
    losses = [torch.tensor(value, device="dipu") for value in (1.0, 2.0, 3.0)]
    wide = torch.arange(5000.0, device="dipu")
    for loss, into in zip([*losses, wide[7]], lines, strict=True):
        taken.hold(loss, into)
    losses[1].mul_(8)  # after the step: it is not the loss any more
    wide.zero_()
    assert taken.pending() == {id(into) for into in lines}
    taken.ask()
    assert len(taken.waiting) == 1
    taken.arrived(wait=True)
    assert lines == [{"loss": 1.0}, {}, {"loss": 3.0}, {"loss": 7.0}]


def test_lines_of_steps_without_time_are_written_when_a_signal_ends_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "open", False)
    monkeypatch.setattr("op_tools.diagnosis.flight_recorder.recorder.AT_LEAST", 1e9)
    recorder = FlightRecorder().start()
    small.train(3)
    written = [line for line in lines(folder) if "ms" in line]
    recorder._event("signal", "SIGTERM")
    told = lines(folder)
    recorder.stop()
    assert (len(written), [line.get("step") for line in told[1:]]) == (0, [0, 1, 2, 3])


def test_while_a_graph_is_captured_nothing_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_tools.core.graph_capture.is_capturing", lambda: True)
    with FlightRecorder() as recorder:
        small.train(3)
    assert recorder.steps == 0


@pytest.mark.parametrize(("cost", "waits"), [(0.004, True), (0.05, False)])
def test_it_waits_for_the_loss_where_that_costs_little(cost: float, waits: bool) -> None:
    patience = Patience()
    for step in range(200):
        first = 0.5 if step % 12 == 0 else 0.0  # what the host was ahead is nobody's
        patience.step(1.0 + first + (cost if patience.waits else 0.0))
    assert patience.waits is waits


def test_a_compiled_model_is_compiled_once_under_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks around modules, of this and other tools, are no part of what is compiled."""
    monkeypatch.setattr(measurements, "SHARE", 100.0)
    graphs = []
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(model, backend=lambda made, _: graphs.append(made) or made.forward)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def steps() -> None:
        for _ in range(10):
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    with FlightRecorder():
        steps()
    with OpCapture(level="aten", mode="statistics", devices=("cpu",)):
        steps()
    steps()
    assert len(graphs) == 1


class Scaled:
    """A training with a GradScaler on the device."""

    def __init__(self, fused: bool = False, divide: int = 1, **options: float) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)]
        self.model = nn.Sequential(*layers).to("dipu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scaler = torch.amp.GradScaler("dipu", **options)  # type: ignore[arg-type]
        self.divide = divide
        self.losses: list[float] = []

    def step(self, times: float = 1.0) -> None:
        loss = (self.model(torch.ones(2, 4, device="dipu")) - 1).pow(2).mean()
        self.losses.append(loss.item())
        scaled = self.scaler.scale(loss / self.divide)
        scaled = scaled + 0 if self.divide > 1 else scaled  # one more node before the root
        scaled.register_hook(lambda gradient: gradient * times)
        self.optimizer.zero_grad()
        scaled.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("divide", [1, 2])
def test_under_a_grad_scaler_every_attempt_and_its_true_loss_are_recorded(
    fused: bool, divide: int, folder: Path
) -> None:
    plain = [vars(torch.amp.GradScaler)[name] for name in ("scale", "step")]
    training = Scaled(fused, divide)
    with FlightRecorder() as recorder:
        for step in range(5):
            training.step(float("inf") if step == 2 else 1.0)
    assert (recorder.steps, recorder.skipped, recorder.events) == (5, 1, [])
    found = [line for line in lines(folder) if "loss" in line]
    assert [line["loss"] for line in found] == [loss / divide for loss in training.losses]
    assert [bool(line.get("skipped")) for line in found] == [False, False, True, False, False]
    assert "5 steps (1 skipped by the GradScaler)" in recorder.summary()
    assert [vars(torch.amp.GradScaler)[name] for name in ("scale", "step")] == plain
    assert tool_errors.problems("FlightRecorder") == []


@pytest.mark.parametrize("fused", [False, True])
def test_a_nan_under_a_grad_scaler_is_an_event(
    fused: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Scaled(fused)
    with torch.dipu.quirk("nan", "gelu", call=3), FlightRecorder() as recorder:
        for _ in range(5):
            training.step()
    (event,) = recorder.events
    assert event.startswith("nan: the loss is not finite in step 2; first NaN produced by gelu")
    assert event.removeprefix("nan: ") in capsys.readouterr().err
    (told,) = (line for line in lines(folder) if "event" in line)
    assert told["next"].startswith("deeplink why-nan --steps 1- -- ")
    title = readers.read(folder).findings[0].title
    assert title.startswith("A NaN in the run: the loss is not finite in step 2")


def test_of_several_backward_passes_in_a_step_one_bad_loss_is_an_event(folder: Path) -> None:
    training = Scaled()
    with FlightRecorder() as recorder:
        for step in range(3):
            for part in range(3):
                x = torch.full((2, 4), float("nan") if (step, part) == (1, 1) else 1.0)
                training.scaler.scale(training.model(x.to("dipu")).mean()).backward()
            training.scaler.step(training.optimizer)
            training.scaler.update()
            training.optimizer.zero_grad()
    (event,) = recorder.events
    assert event.startswith("nan: the loss is not finite in step 1; the NaN came from outside")


def test_a_scale_that_grows_is_no_leap_of_the_loss(folder: Path) -> None:
    training = Scaled(init_scale=1.0, growth_factor=16.0, growth_interval=4)
    with FlightRecorder() as recorder:
        for _ in range(24):
            training.step()
    assert training.scaler.get_scale() == 16.0**6 and recorder.events == []


def test_a_grad_scaler_that_skips_every_step_is_an_event(folder: Path) -> None:
    training = Scaled()
    with FlightRecorder() as recorder:
        for _ in range(24):
            training.step(float("nan"))
    (event,) = recorder.events
    assert event.startswith("nan: the gradient of 0.weight is not finite in step 20")
    assert "the GradScaler has skipped 20 steps in a row before it" in event


def test_gradients_are_recorded_without_the_scale_that_a_fused_optimizer_takes_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "SHARE", 100.0)  # time enough for every gradient
    found = []
    for fused in (False, True):
        training = Scaled(fused)
        with FlightRecorder() as recorder:
            training.step()
            training.step()
        text = recorder.ring.paths[0].read_text().splitlines()
        found.append([json.loads(line).get("grads") for line in text][2])
    assert found[0] == found[1] and len(found[0]) == 4


def test_a_skipped_step_counts_for_the_tools() -> None:
    training = Scaled()
    seen = []
    with OpFallback(ops="torch.nn.functional.gelu"):
        for step in range(3):
            training.step(float("inf") if step == 1 else 1.0)
            seen.append(step_counter.current())
    assert seen == [1, 2, 3]
