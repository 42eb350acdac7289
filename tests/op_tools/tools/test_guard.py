"""Guard: wrong results are found, confirmed, reported once and saved; other steps cost nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import op_tools
from deeplink.errors import SettingError
from op_tools.compare import problems
from op_tools.core import engine, step_counter, tool_errors
from op_tools.diagnosis.report import readers
from op_tools.tools import guard
from op_tools.tools.guard import Finding, Guard, GuardError
from tests.op_tools import small

pytestmark = pytest.mark.skipif(small.CARD != "dipu", reason="faults are the reference device's")


def training(width: int = 48) -> Callable[[], None]:
    """A step of a training, on the reference device."""
    model = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 8))
    model = model.to("dipu")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(64, 32).to("dipu"), torch.randint(0, 8, (64,)).to("dipu")

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step that is watched, all calls are checked."""
    monkeypatch.setattr(guard, "FIRST", 1.0)


def run(tool: Guard, count: int, **quirk: Any) -> None:
    step = training()
    with tool:
        for _ in range(count):
            step()


def test_a_training_without_faults_has_no_finding(
    every_call: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = Guard(budget=1.0)
    run(tool, 12)
    assert tool.findings == tool.suspects == []
    assert tool.products == 5 * tool.watched
    assert tool.others > 10
    assert not tool_errors.problems("Guard")
    assert "0 wrong results" in capsys.readouterr().out


def test_a_wrong_product_is_named_confirmed_and_saved(
    every_call: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = Guard()
    with torch.dipu.quirk("tf32", "mm|addmm"):
        run(tool, 12)
    found = tool.findings[0]
    assert found.confirmed
    assert found.operator in ("aten.mm.default", "aten.addmm.default")
    assert (found.device, found.rank, found.direction) == ("dipu:0", 0, "forward")
    assert found.module in ("0", "3")
    assert "test_guard.py" in found.where
    assert "rounding explains" in found.text
    folder = Path(found.saved) / "device"
    header = json.loads(next(folder.glob("input*.json")).read_text())
    assert header
    printed = capsys.readouterr().err
    assert f"Guard: wrong result\n  Problem:    {found.operator}, forward: " in printed
    assert f"Workaround: deeplink run --fallback {found.operator}" in printed


def test_a_saved_call_runs_from_its_data(every_call: None) -> None:
    tool = Guard()
    with torch.dipu.quirk("tf32", "mm"):
        run(tool, 12)
    line = "-m", "op_tools.run_op_from_data", tool.findings[0].saved, "--acc_check"
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True)
    assert "aten.mm.default" in done.stdout + done.stderr


def test_a_finding_says_what_the_wrong_calls_have_in_common(
    every_call: None, capsys: pytest.CaptureFixture[str]
) -> None:
    x, w = torch.randn(64, 48).to("dipu"), torch.randn(48, 48).to("dipu")
    with torch.dipu.quirk("ignore_strides", "mm"), Guard() as tool:
        for _ in range(6):
            torch.mm(x, w)
            torch.mm(x, w.t())
            op_tools.step()
    expected = (
        "All 2 wrong calls have argument 1 that is transposed (not contiguous); "
        "the correct call does not."
    )
    (found,) = tool.findings
    assert found.problem.evidence[0] == expected
    printed = capsys.readouterr()
    assert f"Evidence:   {expected}" in printed.err
    assert f"Evidence:   {expected}" in printed.out


def test_a_call_that_the_cpu_computes_alike_is_no_evidence(every_call: None) -> None:
    x = torch.zeros(4, device="dipu")
    with Guard() as tool:
        for _ in range(6):
            torch.log(x)
            op_tools.step()
    assert tool.cleared == 1
    assert tool._patterns.of("aten.log.default") == ""


def test_the_memory_of_the_evidence_is_bounded(every_call: None) -> None:
    with Guard() as tool:
        for size in range(1, 3 * problems.KINDS_OF_EACH):
            F.gelu(torch.zeros(size, device="dipu"))
        op_tools.step()
    evidence = tool._patterns._evidence["aten.gelu.default"]
    assert len(evidence.correct) == problems.KINDS_OF_EACH


def test_the_report_shows_a_finding(every_call: None) -> None:
    tool = Guard()
    with torch.dipu.quirk("tf32", "mm|addmm"):
        run(tool, 12)
    (file,) = Path("op_tools_results/op_guard_result").glob("op_guard_info_*.json")
    content = readers.read(Path("op_tools_results"))
    titles = [finding.title for finding in content.findings]
    assert f"{tool.findings[0].operator} is wrong" in titles
    assert set(json.loads(file.read_text("utf-8"))) == {each.operator for each in tool.findings}


def test_nan_of_finite_arguments_is_confirmed_on_the_host(every_call: None) -> None:
    x = torch.randn(8, 9).to("dipu")
    with Guard() as tool:
        for _ in range(3):
            with torch.dipu.quirk("nan", "gelu", call=1):
                F.gelu(x)
            op_tools.step()
    (found,) = tool.findings
    assert (found.operator, found.direction) == ("aten.gelu.default", "forward")
    assert found.text == "1 of 72 elements is not finite, but is on the CPU"


def test_nan_of_a_call_whose_next_arguments_have_nan_is_a_suspect(every_call: None) -> None:
    x = torch.randn(8, 9).to("dipu")
    with Guard() as tool:
        with torch.dipu.quirk("nan", "gelu", call=1):
            F.gelu(x)
        op_tools.step()
        F.gelu(x * float("nan"))
        op_tools.step()
    (found,) = tool.suspects
    assert found.operator == "aten.gelu.default"
    assert not tool.findings


def test_nan_that_the_cpu_has_too_is_no_finding(every_call: None) -> None:
    x = torch.zeros(4, device="dipu")
    with Guard() as tool:
        for _ in range(5):
            torch.log(x)
            x.masked_fill(x == 0, float("-inf"))
            op_tools.step()
    assert tool.findings == tool.suspects == []
    assert tool.cleared == 1


def test_a_fault_that_does_not_come_again_is_a_suspect_reported_once(
    every_call: None, capsys: pytest.CaptureFixture[str]
) -> None:
    step = training()
    with Guard() as tool:
        with torch.dipu.quirk("bit_flip", "addmm", p=1.0, seed=1):
            step()
        for _ in range(6):
            step()
    assert not tool.findings
    said = capsys.readouterr().err
    for suspect in tool.suspects:
        assert not suspect.confirmed
        assert suspect.operator == "aten.addmm.default"
    assert said.count("suspect, not confirmed") == len(tool.suspects)


def test_stop_ends_the_run_at_the_end_of_a_step(every_call: None) -> None:
    tool = Guard(on_finding="stop")
    with pytest.raises(GuardError, match="aten"), torch.dipu.quirk("tf32", "mm|addmm"):
        run(tool, 6)


def test_a_function_is_called_with_the_finding(every_call: None) -> None:
    found: list[Finding] = []
    with torch.dipu.quirk("tf32", "mm|addmm"):
        run(Guard(on_finding=found.append), 12)
    assert found
    assert all(each.confirmed for each in found)


def test_steps_that_are_not_watched_have_no_mode_at_all() -> None:
    step = training()
    with Guard() as tool:
        step()
        step()
        assert engine.active() == []
        assert torch._C._len_torch_function_stack() == 0
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        before = step_counter.current()
        step()
        assert step_counter.current() == before + 1  # steps are counted all the same
    assert (tool.steps, tool.watched) == (3, 1)


def test_the_gap_between_watched_steps_keeps_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(guard.time, "perf_counter", lambda: now)
    clock = guard._Clock(0.01)
    watched = True
    for step in range(1, 2000):
        clock.start()
        now += 3.0 if watched else 1.0
        clock.stop(watched)
        watched = clock.is_due(step)
    assert 0.003 < clock.share <= 0.01


def test_the_program_computes_the_same(every_call: None) -> None:
    def losses(tool: Guard | None) -> list[float]:
        torch.manual_seed(3)
        model = small.Small().to("dipu")
        optimizer = torch.optim.Adam(model.parameters())
        found = []
        if tool is not None:
            tool.start()
        for _ in range(4):
            x = torch.randn(4, 8, device="dipu")
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        if tool is not None:
            tool.stop()
        return found

    assert losses(None) == losses(Guard(budget=1.0))


def test_bad_options_are_refused() -> None:
    with pytest.raises(SettingError, match="budget 7"):
        Guard(budget=7).start()
    with pytest.raises(SettingError, match="on_finding 'explode'"):
        Guard(on_finding="explode").start()  # type: ignore[arg-type]


def test_the_command_line_starts_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch_dipu\n"
        "w = torch.nn.Linear(40, 40).to('dipu'); o = torch.optim.SGD(w.parameters(), 0.1)\n"
        "for _ in range(6):\n"
        "    w(torch.randn(40, 40).to('dipu')).sum().backward(); o.step()\n"
    )
    line = [sys.executable, "-m", "deeplink", "run", "--guard", "--guard-budget", "5%", program]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Guard: 2 of 6 steps watched" in done.stdout
