"""The form of a verdict."""

import sys
from pathlib import Path

import pytest

from op_tools.core.problem import Problem, run_command


def test_fields_stand_below_each_other_and_empty_ones_are_left_out() -> None:
    problem = Problem("mm is wrong.", "train.py:57", ("one", "two"), next="replay it")
    assert problem.lines() == [
        "Problem:    mm is wrong.",
        "Where:      train.py:57",
        "Evidence:   one",
        "            two",
        "Next:       replay it",
    ]


def test_a_verdict_has_a_key_for_each_field_in_a_file() -> None:
    assert Problem("wrong").as_dict() == {
        "problem": "wrong",
        "where": "",
        "evidence": [],
        "workaround": "",
        "next": "",
    }


def test_the_command_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--lr", "1e-3", "a b"])
    assert run_command("--fallback mm") == "deeplink run --fallback mm train.py --lr 1e-3 'a b'"


def test_a_program_that_is_no_script_is_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert run_command("--time") == "deeplink run --time train.py"
