"""The flight recorder: bounded, readable at any moment, silent about a healthy run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from op_tools import FlightRecorder, OpCapture, diagnostics, statistics
from op_tools.diagnosis import signals, stacks
from op_tools.diagnosis.report import readers
from op_tools.diagnosis.ring import Ring
from op_tools.diagnosis.signals import Budget, Patience, Signals, Usual
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    return tmp_path


def test_a_recorded_run_is_the_same_run_and_nobody_is_accused(folder: Path) -> None:
    plain = small.train(12)
    with FlightRecorder() as recorder:
        watched = small.train(12)
    assert plain["losses"] == watched["losses"]
    for key in ("gradients", "weights", "random"):
        for a, b in zip(plain[key], watched[key], strict=True):  # type: ignore[call-overload]
            assert torch.equal(a, b)
    assert (recorder.steps, recorder.events) == (12, [])
    assert diagnostics.problems("FlightRecorder") == []
    found = [line for line in lines(folder) if "step" in line]
    assert [line["step"] for line in found] == list(range(12))
    assert found[3]["loss"] == pytest.approx(plain["losses"][3])  # type: ignore[index]


def test_a_nan_is_told_kept_and_followed_by_whole_steps(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.dipu.quirk("nan", "addmm", call=37), FlightRecorder() as recorder:
        small.train(20)
    (event,) = recorder.events
    assert re.match(r"nan: the loss is not finite in step \d+.*; the first NaN is by addmm", event)
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


def test_a_bad_gradient_is_told_with_how_far_it_came(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "SHARE", 100.0)  # time enough for every gradient
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


def test_a_leap_of_the_loss_is_told() -> None:
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


def test_a_full_disk_costs_lines_and_is_told(tmp_path: Path) -> None:
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
    return subprocess.run(
        [sys.executable, str(program)],
        env=environment | more,
        capture_output=True,
        text=True,
        check=False,
    )


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
    monkeypatch.setattr("op_tools.diagnosis.recorder.MEMORY_AT_LEAST", 5)
    with FlightRecorder():
        small.train(12)
    assert [line["step"] for line in lines(folder) if "memory" in line] == [0, 5, 10]


def test_a_hang_is_told_with_what_every_thread_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_tools.diagnosis.recorder.PERIOD", 0.02)
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
    assert diagnostics.problems("FlightRecorder") == []
    found = [line for line in lines(folder) if "step" in line]
    assert [line["loss"] for line in found] == pytest.approx(plain["losses"])
    with torch.dipu.quirk("nan", "addmm", call=37), FlightRecorder() as recorder:
        small.train(20)
    assert recorder.events[0].startswith("nan: the ")


def test_losses_of_a_device_are_asked_for_together_and_by_their_values() -> None:
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
    monkeypatch.setattr("op_tools.diagnosis.recorder.AT_LEAST", 1e9)
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
    monkeypatch.setattr("op_tools.late.is_capturing", lambda: True)
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
    """Its hooks around modules, and other tools', are no part of what is compiled."""
    monkeypatch.setattr(signals, "SHARE", 100.0)
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
