"""The judgement of a run against a list of gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.opinfo import run
from tests.opinfo.gaps import Gap, judge, read_gaps
from tests.opinfo.outcome import Failure, Outcome
from tests.opinfo.run import main

GAP = Gap("add", "float32", "forward", "todo", "not written")
FAILS = Outcome("add", "float32", (0, 1), failures=(Failure("forward", 0, "wrong"),))
PASSES = Outcome("add", "float32", (1, 1))


def test_a_failure_with_a_gap_is_accepted() -> None:
    assert judge([FAILS], [GAP], ["add"]) == []


def test_a_failure_without_a_gap_is_named() -> None:
    assert judge([FAILS], [], ["add"]) == ["add float32 forward: fails and is not in gaps.toml"]


def test_a_gap_for_another_stage_does_not_cover_the_failure() -> None:
    backward = Gap("add", "float32", "backward", "todo", "not written")
    complaints = judge([FAILS], [backward], ["add"])
    assert complaints[0] == "add float32 forward: fails and is not in gaps.toml"


def test_a_gap_that_passes_is_named() -> None:
    complaints = judge([PASSES], [GAP], ["add"])
    assert complaints == ["add float32 forward: a listed gap that passes"]


def test_a_gap_for_an_unknown_op_is_named() -> None:
    complaints = judge([], [GAP], ["mul"])
    assert complaints == ["add float32: a gap that matches no op"]


def test_a_gap_for_an_op_of_a_later_torch_is_not_judged() -> None:
    assert judge([], [replace(GAP, since="99.0")], ["mul"]) == []
    assert judge([], [replace(GAP, since="2.0")], ["mul"]) != []


def test_a_gap_whose_op_was_not_run_is_not_judged() -> None:
    assert judge([Outcome("mul", "float32", (1, 1))], [GAP], ["add", "mul"]) == []


def test_a_gap_for_all_dtypes_is_not_judged_by_one_of_them() -> None:
    everywhere = Gap("add", "*", "*", "never", "by design")
    assert judge([PASSES], [everywhere], ["add"]) == []


def test_a_misspelt_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text(
        '[[gap]]\nop = "add"\ndtype = "*"\nstage = "*"\nkind = "later"\nreason = "why"\n'
    )
    with pytest.raises(ValueError, match="a kind of"):
        read_gaps(path)


def test_a_missing_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text('[[gap]]\nop = "add"\n')
    with pytest.raises(ValueError, match="should have exactly dtype, kind, op, reason, stage"):
        read_gaps(path)


def test_what_the_rules_leave_out_is_reported_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text('[device]\ndtypes = ["float32"]')
    assert main(["--ops", "^(add|mul)$", "--dtypes", "int64", "--gaps", str(path)]) == 0
    assert "2 ops left out: the chip has no int64" in capsys.readouterr().out


def test_a_vendor_brings_its_own_gaps() -> None:
    assert run._parse(["--vendor", "cpu"]).gaps.parent.name == "cpu"


def test_an_unknown_vendor_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run._parse(["--vendor", "referense"])
    assert "no vendor 'referense'" in capsys.readouterr().err
