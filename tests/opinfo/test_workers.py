"""A worker that dies or hangs costs one row."""

from __future__ import annotations

import pytest

from tests.opinfo import workers
from tests.opinfo.outcome import Outcome
from tests.opinfo.workers import LostWorkerError, Task, run_all


def _outcomes(*ops: str) -> dict[str, Outcome]:
    rows = run_all([Task(op, "float32") for op in ops], jobs=1)
    return {row.op: row for row in rows}


def test_a_crash_is_one_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MODULE", "tests.opinfo.fake_worker")
    rows = _outcomes("before", "dies", "after")
    assert rows["dies"].failures[0].message == "the process died with SIGKILL"
    assert rows["before"].passed
    assert rows["after"].passed


def test_a_hang_is_one_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MODULE", "tests.opinfo.fake_worker")
    monkeypatch.setattr(workers, "LIMIT_SECONDS", 2.0)
    rows = _outcomes("hangs", "after")
    assert rows["hangs"].failures[0].message == "no result within 2 s"
    assert rows["after"].passed


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MODULE", "tests.opinfo.no_such_worker")
    with pytest.raises(LostWorkerError, match=r"exit code 1: .* No module named"):
        _outcomes("add")
