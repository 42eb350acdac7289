"""The command: the classic flags and prints, outcomes for machines, a bad case that stops none."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from op_tools import OpCapture, run_op_from_data
from op_tools.replay import load_cases
from op_tools.run_op_from_data import Plan, arguments, run_case, worst_first
from tests import warm

ROOT = Path("op_tools_results")


def command(*words: str) -> int:
    """Runs the command in this process; its exit code."""
    before, sys.argv = sys.argv, ["run_op_from_data", *words]
    try:
        run_op_from_data.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture
def captures() -> Path:
    torch.manual_seed(0)
    x = torch.randn(4, 6, device="dipu", requires_grad=True)
    with OpCapture(ops="torch.Tensor.sort,torch.Tensor.exp,torch.Tensor.bernoulli"):
        values, _ = x.exp().sort()
        values.sum().backward()
        x.detach().sigmoid().bernoulli()
    return ROOT / "op_capture_results"


def test_all_is_well(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(captures), "--run_times", "2") == 0
    said = capsys.readouterr().out
    assert said.count("\nop_tools_results/op_capture_results/torch.Tensor.") == 3
    assert "run_op_from_data: 3 cases: 1 not comparable, 2 ok; 2 bit by bit" in said


def test_a_wrong_result_fails_and_is_shown_first(
    captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (output,) = captures.rglob("torch.Tensor.exp/**/output.pth")
    held = torch.load(output, weights_only=True)
    held["args"][0].detach()[1, 2] += 1
    torch.save(held, output)
    (broken,) = captures.rglob("torch.Tensor.sort/**/input.pth")
    broken.write_bytes(b"nonsense")
    code = command(str(captures), "--run_times", "1", "--json", "out.json", "--junit", "out.xml")
    assert code == 1
    outcomes = json.loads(Path("out.json").read_text())
    assert [o["status"] for o in outcomes] == ["error", "FAILED", "not comparable"]
    failed = outcomes[1]
    assert failed["name"] == "torch.Tensor.exp" and "1 of 24 not close" in failed["message"]
    assert [item["item"] for item in failed["items"]] == ["output", "grad[0]"]
    suite = ElementTree.parse("out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert "1 of 24 not close" in suite.find("testcase/failure").get("message", "")  # type: ignore[union-attr]
    assert "3 cases: 1 error, 1 FAILED, 1 not comparable" in capsys.readouterr().out


def test_a_wrong_gradient_fails(captures: Path) -> None:
    (file,) = captures.rglob("torch.Tensor.exp/**/grad_inputs.pth")
    held = torch.load(file, weights_only=True)
    held["args"][0][0, 0] *= 2
    torch.save(held, file)
    (case,) = load_cases(captures / "torch.Tensor.exp")
    outcome = run_case(case, Plan())
    assert outcome.status == "FAILED" and outcome.message.startswith("grad[0]: 1 of 24")
    assert run_case(case, Plan(forward_only=True)).status == "ok"


@pytest.mark.parametrize("against", ["captured", "cpu", "float64"])
@pytest.mark.parametrize("device", ["dipu", "cpu"])
def test_what_it_is_held_against(captures: Path, against: str, device: str) -> None:
    folder = captures / "torch.Tensor.sort"
    words = ("--against", against, "--device", device, "--json", "out.json", "--run_times", "1")
    assert command(str(folder), *words) == 0
    (outcome,) = json.loads(Path("out.json").read_text())
    assert outcome["status"] == "ok" and outcome["device"] == device
    items = [item["item"] for item in outcome["items"]]
    if against == "float64":  # the parts that OpAutoCompare compares
        assert items == ["input", "output[0]", "output[1]", "grad"]
    else:
        assert items == ["output.values", "output.indices", "grad[0]"]


def test_a_long_sum_is_right_though_beyond_the_tolerance_of_its_type() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(8, 4096, device="dipu"), torch.randn(4096, 8, device="dipu")
    with OpCapture(ops="torch.matmul"):
        torch.matmul(x * 100, y)
    assert command(str(ROOT), "--against", "float64", "--run_times", "1") == 0


@pytest.fixture
def under_autocast() -> Path:
    """Two healthy calls of a mixed-precision step: a linear layer, and normalize in bfloat16."""
    torch.manual_seed(0)
    x = torch.randn(256, 128, device="dipu", requires_grad=True)
    weight = torch.randn(32, 128, device="dipu", requires_grad=True)
    with OpCapture(ops="torch.nn.functional.linear,torch.nn.functional.normalize"):
        with torch.autocast("dipu", torch.bfloat16):
            made = torch.nn.functional.normalize(torch.nn.functional.linear(x, weight), dim=-1)
        made.float().square().mul(torch.randn(256, 32).to("dipu")).sum().backward()
    return ROOT / "op_capture_results"


def test_the_accuracy_check_passes_gradients_that_autocast_computed_in_bfloat16(
    under_autocast: Path,
) -> None:
    assert command(str(under_autocast), "--acc_check", "--run_times", "1", "--json", "o.json") == 0
    outcomes = json.loads(Path("o.json").read_text())
    items = {o["name"].split(".")[-1]: [item["item"] for item in o["items"]] for o in outcomes}
    assert items["linear"] == ["input[0]", "input[1]", "output", "grad[0]", "grad[1]"]


def test_the_accuracy_check_goes_by_the_standard_that_is_set(
    under_autocast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_AUTOCOMPARE_STANDARD", "allclose")
    (case,) = load_cases(under_autocast / "torch.nn.functional.linear")
    outcome = run_case(case, Plan(against="float64"))
    wrong = [row.path for row in outcome.rows if not row.close]
    assert outcome.status == "FAILED" and wrong == ["grad[0]", "grad[1]"]  # 1e-5 of float32


def test_the_accuracy_check_reports_a_wrong_gradient(under_autocast: Path) -> None:
    (case,) = load_cases(under_autocast / "torch.nn.functional.linear")
    with torch.dipu.quirk("nan", "mm"):
        outcome = run_case(case, Plan(against="float64"))
    assert outcome.status == "FAILED" and "NaN on one side only" in outcome.message


def test_the_times_are_shown_as_in_the_classic_tools(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(captures / "torch.Tensor.sort")
    assert command(folder, "--sync_time_measure", "--run_times", "3") == 0
    said = capsys.readouterr().out
    for column in ("forward_elasped", "backward_elasped"):
        assert said.count(f"| {column} | unit |") == 3 + (column == "backward_elasped")
    assert re.search(r"\| torch.Tensor.sort \| +3 +\| +\d+\.\d{8} +\|  ms  \|", said)
    together = "name forward_id forward_elasped backward_elasped unit".split()
    assert re.search(r"\| +" + r" +\| +".join(together) + r" +\|", said)


def test_the_times_of_several_calls_are_in_one_file(captures: Path) -> None:
    assert command(str(captures), "--sync_time_measure", "--run_times", "2") == 0
    (file,) = ROOT.glob("op_time_measure_result/op_elasped_info_pid*.csv")
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["forward_id"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    (sort, _) = [row for row in rows if row["name"] == "torch.Tensor.sort"]
    shapes = "float32(4, 6)", "float32(4, 6), int64(4, 6)", "float32(4, 6)", "float32(4, 6)"
    assert tuple(list(sort.values())[-4:]) == shapes


def test_times_that_cannot_be_saved_are_shown(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ROOT / "op_time_measure_result").write_text("in the way")
    words = ("--sync_time_measure", "--run_times", "1")
    assert command(str(captures / "torch.Tensor.exp"), *words) == 0
    said = capsys.readouterr().out
    assert "op_time_measure_result cannot be written" in said and "1 case: 1 ok" in said


def test_every_call_is_shown_on_request(
    captures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    assert command(str(captures / "torch.Tensor.sort"), "--run_times", "1") == 0
    said = capsys.readouterr().out
    for row in ("inputs", "outputs [0][1]", "grad_inputs"):
        assert re.search(rf"\| +torch.Tensor.sort {re.escape(row)} +\|.*\| dipu:0 \|", said), row


def test_only_forward(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(captures / "torch.Tensor.sort")
    words = ("--run_times", "3", "--only_run_forward", "True", "--sync_time_measure")
    assert command(folder, *words) == 0
    said = capsys.readouterr().out
    assert said.count("forward_elasped") == 4 and "backward_elasped" not in said


def test_the_accuracy_check_shows_a_table(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(str(captures / "torch.Tensor.exp"), "--acc_check", "--run_times", "1") == 0
    said = capsys.readouterr().out
    columns = (*("allclose", "max_abs_diff", "max_relative_diff"), *("atol", "rtol", "error_info"))
    assert re.search(r"\| *name *\| +" + r" +\| +".join(columns) + r" +\|", said)
    for item in ("input", "output", "grad"):
        assert re.search(rf"\| torch.Tensor.exp {item} +\|   True   \| 0\.000000000 +\|", said)


@pytest.mark.parametrize("variable", ["AUTOCOMPARE", "EXP_AUTOCOMPARE"])
@pytest.mark.parametrize(("tolerance", "code"), [("1e-9,1e-9", 1), ("1e3,1e3", 0)])
def test_the_accuracy_check_goes_by_the_tolerances_that_are_set(
    captures: Path,
    variable: str,
    tolerance: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"{variable}_ERROR_TOLERANCE_FLOAT32", tolerance)
    wrong = torch.dipu.quirk("bit_flip", "exp", p=1.0)
    with wrong:
        words = ("--acc_check", "--run_times", "1")
        assert command(str(captures / "torch.Tensor.exp"), *words) == code
    verdict = "False" if code else "True "
    tolerances = " | ".join(f"{float(part):.9f}" for part in tolerance.split(","))
    said = capsys.readouterr().out
    assert re.search(rf"\| +torch.Tensor.exp output +\| +{verdict} +\|.*\| +{tolerances}", said)


def test_an_archive(capsys: pytest.CaptureFixture[str]) -> None:
    with OpCapture(format="packed"):
        torch.ones(3, device="dipu").mul(2).add_(1)
    (file,) = ROOT.rglob("*.opcap")
    assert command(str(file), "--run_times", "2") == 0
    assert "3 cases: 3 ok; 3 bit by bit" in capsys.readouterr().out


def test_missing_calls_of_an_archive_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with OpCapture(format="packed"):
        for i in range(10):
            torch.ones(3, device="dipu").mul(i)
    (file,) = ROOT.rglob("*.opcap")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    words = ("--run_times", "1", "--json", "out.json", "--export", "worst.py")
    assert command(str(file), *words) == 1
    bad, *rest = json.loads(Path("out.json").read_text())
    assert (bad["status"], bad["where"]) == ("error", str(file))
    assert bad["message"].startswith(f"{20 - len(rest)} of 20 calls are missing or damaged")
    assert rest and {outcome["status"] for outcome in rest} <= {"ok", "ran"}
    assert "worst.py and worst.pt written" in capsys.readouterr().out


def test_a_path_without_captures_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("nowhere") == 2
    assert "there is nothing at nowhere" in capsys.readouterr().err


def test_cuda_is_the_chosen_device_where_torch_has_no_cuda(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--device", "cuda", "--run_times", "1", "--json", "out.json")
    assert command(str(captures / "torch.Tensor.exp"), *words) == 0
    assert "torch has no cuda here: dipu represents it" in capsys.readouterr().out
    (outcome,) = json.loads(Path("out.json").read_text())
    assert (outcome["status"], outcome["device"]) == ("ok", "dipu")


def test_a_device_that_is_not_here_is_one_error(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(str(captures), "--device", "nope") == 2
    said = capsys.readouterr()
    assert "op_tools_results" not in said.out
    assert said.err == (
        "device 'nope' cannot be used: torch has no device of this name; "
        "allowed: cpu, cuda, dipu.\n"
        "Hint: `deeplink doctor` shows the devices of this machine.\n"
    )


def test_the_oldest_way_to_set_a_flag() -> None:
    assert arguments(["x", "--only_run_forward", "True", "--run_times", "3"]) == [
        *("x", "--only_run_forward", "--run_times", "3")
    ]
    assert arguments(["x", "--acc_check", "False"]) == ["x"]


@pytest.mark.parametrize(
    "flags",
    [
        "--run_times 10",
        "--run_times 3 --only_run_forward True",
        "--acc_check --run_times 1",
        "--run_times 3 --sync_time_measure",
        "--run_times 3 --only_run_forward --sync_time_measure",
    ],
)
def test_the_file_runs_as_a_script(captures: Path, flags: str) -> None:
    script = str(run_op_from_data.__file__)
    done = warm.run([script, str(captures), *flags.split()], os.environ)
    assert done.returncode == 0, done.stderr
    assert "3 cases: 1 not comparable, 2 ok" in done.stdout


def test_the_order_is_the_worst_first(captures: Path) -> None:
    outcomes = [run_case(case, Plan()) for case in load_cases(captures)]
    assert [o.status for o in worst_first(outcomes)] == ["not comparable", "ok", "ok"]
