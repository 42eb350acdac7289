"""Bad implementations are survived and named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from diopi.conformance.cases.case import Result
from diopi.conformance.command import Request, run
from diopi.conformance.results import results

VENDOR = "tests.diopi.conformance.broken"
WRONG = {  # what each does, and the check that reports it
    "sin": "crashed",
    "cos": "hung",
    "sinh": "dtype",
    "cosh": "shape",
    "tanh": "values",  # or, where the adjacent memory has none, a NaN
    "exp": "guard",
    "neg": "inputs",
    "sqrt": "call",
    "floor": "leak",
    "ceil": "call",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    folder = tmp_path_factory.mktemp("broken")
    ops = (*WRONG, "log")
    out = Console(file=io.StringIO())
    request = Request(VENDOR, "smoke", ops, ("float32",), 2, 9.0, folder)
    run(request, out)
    return folder, results.read(folder / "results.jsonl")


@pytest.mark.parametrize("op", WRONG)
def test_it_is_named(op: str, found: tuple[Path, list[Result]]) -> None:
    checks = {f.check for r in found[1] if r.op == op for f in r.findings if f.grade == "F"}
    alike = {"values", "specials"}
    assert WRONG[op] in checks or (WRONG[op] in alike and checks & alike)


def test_the_right_one_passes(found: tuple[Path, list[Result]]) -> None:
    mine = [result for result in found[1] if result.op == "log" and result.status != "skipped"]
    assert mine and not any(result.bad for result in mine)


def test_a_dead_process_costs_one_case(found: tuple[Path, list[Result]]) -> None:
    crashed = [r for r in found[1] if r.op == "sin" and r.status == "crashed"]
    assert len(crashed) > 1  # each case of the group was tried
    assert "SIGSEGV" in crashed[0].message


def test_a_lost_device_costs_the_case_that_lost_it(found: tuple[Path, list[Result]]) -> None:
    mine = [r for r in found[1] if r.op == "ceil" and r.status != "skipped"]
    wrong = [r.case for r in mine if r.bad]
    assert wrong == ["ceil/float32/ceil+samples.0/plain/plain"]
    assert len(mine) > 1  # the others ran in a new process


def test_the_reports_have_the_line_that_reproduces_it(found: tuple[Path, list[Result]]) -> None:
    text = (found[0] / "error_report.csv").read_text()
    assert f"python -m diopi.conformance --vendor {VENDOR} --case 'cosh/float32/" in text
    assert (found[0] / "junit.xml").read_text().count("<failure") > 5
