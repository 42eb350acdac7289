"""Which operators make a program wrong: found by reruns, without false reports."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shlex
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_dipu  # noqa: F401
from deeplink import cli
from deeplink.run.loss_log import Loss
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect import health_checks
from op_tools.diagnosis.bisect.driver import Asked, Bisection
from op_tools.diagnosis.bisect.reroute_tool import Plan
from op_tools.diagnosis.bisect.runner import Command, Function, Until, evidence_in
from op_tools.diagnosis.report import readers
from op_tools.tensors import host_transfer
from tests import warm
from tests.op_tools.diagnosis.programs import training

WELL = [0.9, 0.5]


def bisected(call: Callable[[], list[float]], folder: Path, **asked: Any) -> result_files.Bisect:
    return Bisection(Function(call, ["train"]), folder, Asked(**asked)).run()


def guilty(found: result_files.Bisect) -> list[str]:
    return [row["op"] for row in found["guilty"]]


@pytest.mark.parametrize(
    ("fault", "dtype", "op"),
    [
        (("wrong_epsilon", "native_layer_norm"), torch.float32, "aten.native_layer_norm.default"),
        (("wrong_epsilon", "native_layer_norm"), torch.bfloat16, "aten.native_layer_norm.default"),
        (("ignore_strides", "mm"), torch.float32, "aten.mm.default"),
        (("tf32", "addmm"), torch.float32, "aten.addmm.default"),
    ],
)
def test_the_faulty_operator_is_named_and_no_other(
    fault: tuple[str, str], dtype: torch.dtype, op: str, tmp_path: Path
) -> None:
    found = bisected(training(fault, dtype), tmp_path, places=False)
    assert (found["status"], guilty(found)) == ("found", [op])
    assert len(found["runs"]) <= 6
    assert json.loads((tmp_path / "bisect.json").read_text()) == json.loads(json.dumps(found))


def test_two_faults_are_both_found_without_a_suspect(tmp_path: Path) -> None:
    def both() -> list[float]:
        with torch.dipu.quirk("ignore_strides", "mm"):
            return training(("wrong_epsilon", "native_layer_norm"))()

    found = bisected(both, tmp_path, suspects=False, places=False)
    assert guilty(found) == ["aten.mm.default", "aten.native_layer_norm.default"]
    assert len(found["runs"]) <= 20


def test_a_nan_is_traced_to_its_operator_and_module(tmp_path: Path) -> None:
    call = training(("nan", "gelu$|gelu.out"), call=2)
    found = bisected(call, tmp_path, check=health_checks.NanCheck(), suspects=False)
    assert guilty(found) == ["aten.gelu.default"]
    (place,) = found["guilty"][0]["places"]
    assert (place["module"], place["direction"]) == ("2", "forward")


@pytest.mark.parametrize("asked", [{"instead": "float64"}, {"level": "api"}], ids=str)
def test_in_a_wider_type_or_by_the_names_of_functions(
    asked: dict[str, str], tmp_path: Path
) -> None:
    found = bisected(training(("tf32", "addmm")), tmp_path, places=False, **asked)
    op = "torch.nn.functional.linear" if "level" in asked else "aten.addmm.default"
    assert (found["status"], guilty(found)) == ("found", [op])


def test_what_draws_numbers_that_the_cpu_cannot_stays_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: dropout on the CPU would be another one, in each run."""
    monkeypatch.setattr(host_transfer, "draws_as_cpu", lambda device: False)

    def train() -> list[float]:
        torch.manual_seed(0)
        x = torch.nn.functional.dropout(torch.ones(64, device="dipu"), 0.5)
        return [(x * 3).sum().item()]

    found = bisected(train, tmp_path)
    assert found["status"] == "nothing"
    found = bisected(
        train, tmp_path, check=health_checks.ExpressionCheck("loss < 0"), suspects=False
    )
    assert "aten.mul.Tensor" in found["candidates"]
    assert "aten.native_dropout.default" not in found["candidates"]


def test_a_healthy_program_reports_nothing(tmp_path: Path) -> None:
    found = bisected(training(), tmp_path)
    assert (found["status"], guilty(found)) == ("nothing", [])
    assert "Nothing to find" in found["verdict"]


def test_a_fault_that_is_the_programs_own_is_not_blamed_on_an_operator(tmp_path: Path) -> None:
    check = health_checks.ExpressionCheck("loss < 0")
    found = bisected(training(), tmp_path, check=check, suspects=False)
    assert found["status"] == "program"
    assert "also fails with all operators on the CPU" in found["verdict"]


def test_what_fails_once_and_not_again_is_said_to_be_chance(tmp_path: Path) -> None:
    runs = iter([[float("nan")], WELL, WELL, WELL, WELL, WELL, WELL, WELL, WELL, WELL, WELL])

    def moody() -> list[float]:
        training()()
        return next(runs)

    found = bisected(moody, tmp_path, check=health_checks.NanCheck(), suspects=False)
    assert (found["status"], guilty(found)) == ("unclear", [])
    assert "it is intermittent" in found["verdict"]


def test_a_program_that_is_never_the_same_gets_the_hint_to_set_its_seed(tmp_path: Path) -> None:
    losses = iter([[1.0], [2.0], [3.5], [1.5]])

    def unseeded() -> list[float]:
        training()()
        return next(losses)

    found = bisected(unseeded, tmp_path, suspects=False)
    assert (found["status"], guilty(found)) == ("unclear", [])
    assert "seeds" in found["verdict"]


# By a command. The stand-in reads the plan as the tools do, so that a run takes no time.

STAND_IN = """
import json, os, sys
plan = json.load(open(os.environ["OP_BISECT_PLAN"])) if "OP_BISECT_PLAN" in os.environ else {}
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "runs"), "a").write("x")
if os.path.exists(os.path.join(here, "stop")):
    sys.exit("out of order")
if os.path.exists(os.path.join(here, "kill")) and os.path.getsize(os.path.join(here, "runs")) == 5:
    os.kill(os.getppid(), 9)
names = [f"aten.op{i}.default" for i in range(40)]
if plan:
    could = [[name, "m", "x.py:1", "forward", 2] for name in names]
    json.dump({"could": could, "did": {}}, open(plan["counts"] + "/counts-0-1.json", "w"))
well = plan.get("everything") or "aten.op17.default" in plan.get("ops", [])
ends = os.path.join(here, "ends")
ends = open(ends).read() if os.path.exists(ends) else ""
if ends == "early":  # the faulty one ends the program
    print("loss: 0.7", flush=True)
    if not well:
        os.kill(os.getpid(), 11)
print("loss:", 0.5 if well or ends == "early" else 0.75, flush=True)
if ends == "late":
    os.kill(os.getpid(), 11)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(STAND_IN)
    return file


def run_command(program: Path, *options: str) -> int:
    folder = str(program.parent / "out")
    line = ["--to", folder, "--fresh", "--no-suspects", "--no-places", "--no-script", *options]
    return cli.status(["bisect", *line, "--", sys.executable, str(program)])


def found_by(program: Path) -> result_files.Bisect:
    found: result_files.Bisect = result_files.read(program.parent / "out" / "bisect.json")
    return found


def test_the_command_finds_one_of_forty_in_nine_runs(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(program) == 1
    assert guilty(found_by(program)) == ["aten.op17.default"]
    assert len(found_by(program)["runs"]) <= 6 + 3 + 1  # of which one learns what rounding does
    shown = capsys.readouterr()
    assert (
        "Cause: aten.op17.default. Moving only this operator to the CPU fixes the loss" in shown.out
    )
    assert re.search(r"run \d+/\d+\+: testing \d+ of 40 operators\n", shown.err)


def test_what_was_run_is_not_run_again_after_a_stop(program: Path) -> None:
    run_command(program)
    made = len((program.parent / "runs").read_text())
    (program.parent / "out" / "bisect.json").unlink()
    for folder in ("run-06", "run-07"):  # killed in the middle
        (program.parent / "out" / folder / "done.json").unlink()
    assert run_command(program, "--resume") == 1
    assert len((program.parent / "runs").read_text()) == made + 2
    assert guilty(found_by(program)) == ["aten.op17.default"]


def test_after_kill_9_the_search_goes_on_where_it_was(program: Path) -> None:
    run_command(program)
    alone = len((program.parent / "runs").read_text())
    shutil.rmtree(program.parent / "out")
    (program.parent / "runs").unlink()
    (program.parent / "kill").touch()
    search = os.fork()
    if not search:
        run_command(program)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(search, 0)[1]) == -signal.SIGKILL
    (program.parent / "kill").unlink()
    left = found_by(program)
    assert (left["status"], len(left["runs"]) >= 3) == ("running", True)
    assert readers.read(program.parent / "out").findings  # a page shows how far it came
    assert run_command(program, "--resume") == 1
    assert guilty(found_by(program)) == ["aten.op17.default"]
    assert len((program.parent / "runs").read_text()) <= alone + 2  # what was cut short, again


def test_a_command_that_does_not_run_is_reported_with_its_last_lines(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program.parent / "stop").touch()
    assert run_command(program) == 2
    assert found_by(program)["status"] == "broken"
    out = capsys.readouterr().out
    assert "ended with status 1" in out
    assert "out of order" in out


@pytest.mark.parametrize("check", ["loss", "nan"])
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_run_that_a_signal_ends_is_judged_by_its_losses(
    program: Path, when: str, check: str
) -> None:
    """Behind the last of them it does no harm; before, the operator that does it is found."""
    (program.parent / "ends").write_text(when)
    healthy = (when, check) == ("late", "nan")
    assert run_command(program, "--check", check) == (0 if healthy else 1)
    found = found_by(program)
    assert guilty(found) == ([] if healthy else ["aten.op17.default"])
    assert "it was ended by SIGSEGV" in found["runs"][0]["reason"]


def test_a_command_that_hangs_is_stopped(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "import time; print('loss 1', flush=True); time.sleep(600)"]
    seen = Command(line, tmp_path, timeout=0.5).start({}, 1)
    assert seen.exit == 124
    assert "stopped after" in seen.problem


GOES_ON = """
import time
print("loss 1.5", flush=True)
print("loss 2.", end="", flush=True)
time.sleep(600)
"""


def test_a_run_ends_when_its_losses_decide(tmp_path: Path) -> None:
    """Not by a loss that is still being written."""
    line, seen_so_far = [sys.executable, "-c", GOES_ON], []

    def told(losses: Sequence[Loss]) -> bool:
        seen_so_far.append([loss.value for loss in losses])
        return bool(losses)

    seen = Command(line, tmp_path).start({}, 1, until=Until(told, "any"))
    assert (seen.ended, seen.values[0], seen_so_far[-1]) == ("", 1.5, [1.5])
    again = Command(line, tmp_path, resume=True, timeout=0.5)
    assert again.start({}, 1, until=Until(told, "any")).exit == 0  # it was made before
    assert again.start({}, 1).exit == 124  # another question


@pytest.mark.parametrize(
    ("losses", "decided"), [([0.9], False), ([0.8], True), ([0.9, 0.5], True), ([], False)]
)
def test_a_run_is_decided_by_a_wrong_loss_or_by_all_of_them(
    losses: list[float], decided: bool
) -> None:
    check = health_checks.LossCheck([Loss(value) for value in WELL], [1e-6])
    assert health_checks.is_decided(check, [Loss(value) for value in losses], len(WELL)) is decided
    assert not health_checks.is_decided(
        health_checks.ExitCheck(), [Loss(value) for value in losses], 2
    )
    assert not health_checks.is_decided(health_checks.NanCheck(), [Loss(1.0)], 2)
    assert health_checks.is_decided(health_checks.NanCheck(), [Loss(math.nan)], 2)


def test_a_command_that_is_not_there_is_reported(program: Path) -> None:
    line = ["--to", str(program.parent / "out"), "--", "no_such_program"]
    assert cli.status(["bisect", *line]) == 2
    assert "cannot be started" in found_by(program)["verdict"]


def test_without_a_loss_the_verdict_says_what_to_do(program: Path) -> None:
    assert run_command(program, "--loss-pattern", r"energy (\d+)") == 2
    assert "--loss-pattern" in found_by(program)["verdict"]


def test_a_full_disk_is_reported_and_what_was_found_stays(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(program)
    before = found_by(program)

    def full(found: Any, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(result_files, "write", full)
    assert run_command(program, "--resume") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert found_by(program) == before


@pytest.mark.parametrize("check", ["all(x < 0.6 * status + 0.6 for x in losses)", "script", "exit"])
def test_a_check_of_ones_own(program: Path, check: str) -> None:
    if check == "script":
        script = program.parent / "well.sh"
        script.write_text('#!/bin/sh\ngrep -q "loss: 0.5" "$1" && grep -q 0.5 "$2"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        check = f"script:{script}"
    if check == "exit":
        program.write_text(STAND_IN + "sys.exit(0 if well else 3)\n")
    assert run_command(program, "--check", check) == 1
    assert guilty(found_by(program)) == ["aten.op17.default"]


def test_a_reference_of_ones_own_decides(program: Path) -> None:
    reference = program.parent / "right.json"
    reference.write_text("[0.5]")
    assert run_command(program, "--reference", str(reference), "--tolerance", "1e-3") == 1
    reference.write_text("[0.1]")
    assert run_command(program, "--reference", str(reference), "--tolerance", "1e-3") == 2
    assert found_by(program)["status"] == "program"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--check", "loss <"], "no Python expression"),
        (["--check", "all(x < los for x in losses)"], "there is no los."),
        (["--check", "script:/nowhere.sh"], "the file is not there"),
        (["--reference", "/nowhere.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_reported_at_once(
    program: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*options, "--to", str(program.parent / "out"), "--", sys.executable, str(program)]
    assert cli.status(["bisect", *line]) == 2
    assert said in capsys.readouterr().err
    assert not (program.parent / "runs").exists()


PROGRAM = """
import deeplink
from tests.op_tools.diagnosis.programs import training
for loss in training()():
    deeplink.observe_loss(loss)
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that trains on a device with a fault in its layer norm."""
    monkeypatch.setenv("DIPU_QUIRKS", "wrong_epsilon:native_layer_norm")
    path = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))  # for the program's own imports
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


def test_a_real_program_does_as_its_plan_says_and_reports_what_it_calls(real: Path) -> None:
    runner = Command([sys.executable, str(real)], real.parent / "out", fresh=False)
    norm = "aten.native_layer_norm.default"
    with contextlib.closing(runner):
        wrong = runner(Plan(), 1, suspects=True)
        well = runner(Plan(ops=(norm,)), 2)
        assert not runner.fresh
    assert wrong.suspects[0] == norm
    assert norm in {where[0] for where in wrong.counts.could}
    assert set(well.counts.did) == {norm}
    right = training()()
    assert well.values == pytest.approx(right, rel=1e-6)
    assert wrong.values != pytest.approx(right, rel=1e-6)


@pytest.mark.slow
def test_a_real_program_from_the_loss_to_the_operator(real: Path) -> None:
    folder = str(real.parent / "out")
    line = ["--to", folder, "--tolerance", "1e-6", "--no-places", "--no-script"]
    assert cli.status(["bisect", *line, "--", sys.executable, str(real)]) == 1
    assert guilty(found_by(real)) == ["aten.native_layer_norm.default"]
    assert len(found_by(real)["runs"]) == 4  # as it is, everything, the suspect, again


CUDA_PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 8).cuda()
for step in range(3):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
"""


@pytest.mark.slow
def test_the_workaround_that_is_printed_repairs_the_run_when_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(CUDA_PROGRAM)
    monkeypatch.setenv("DITORCH_QUIET", "1")
    run = ["-m", "deeplink", "run"]
    right = warm.run([*run, str(file)], os.environ, warn="ignore").stdout
    monkeypatch.setenv("DIPU_QUIRKS", "ignore_strides:mm")
    line = ["-o", str(tmp_path / "out"), "--no-modules", "--no-script", "--no-suspects"]
    assert cli.status(["bisect", *line, str(file)]) == 1
    shown = capsys.readouterr().out
    (fix,) = re.findall(r"^Workaround: (.*)$", shown, re.MULTILINE)
    assert fix == f"deeplink run --fallback aten.mm.default {file}"
    done = warm.run(["-m", *shlex.split(fix)], os.environ, warn="ignore")
    assert done.stdout.startswith(right), done.stderr


def test_what_wrong_calls_have_in_common_is_read_from_the_runs(tmp_path: Path) -> None:
    place = tmp_path / "run-01" / "compared" / "op_autocompare_result"
    place.mkdir(parents=True)
    (place / "a.problems.json").write_text('{"aten.mm.default": {"evidence": ["transposed"]}}')
    assert evidence_in(tmp_path, "aten.mm.default") == ["transposed"]
    assert evidence_in(tmp_path, "aten.add.Tensor") == []
