"""The quick tier of op_db: a spread of ops on the device against the CPU, one test per op."""

from __future__ import annotations

from typing import Any

import pytest

from tests.opinfo.gaps import find_gap, read_gaps
from tests.opinfo.outcome import Outcome
from tests.opinfo.quick import QUICK
from tests.opinfo.workers import Task, run_all

TASKS = [Task(op, dtype) for dtype, ops in QUICK.items() for op in ops]
SAMPLES = 12  # of each op: the first ones are the most varied
GAPS = read_gaps()


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> dict[Task, Outcome]:
    """The outcomes of every op that this session selected, checked in two processes."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    tasks: list[Any] = [
        item.callspec.params["task"] for item in items if "outcomes" in item.fixturenames
    ]
    rows = run_all(tasks, jobs=2, limit=SAMPLES)
    return {Task(row.op, row.dtype): row for row in rows}


@pytest.mark.parametrize("task", TASKS, ids=[f"{task.op}-{task.dtype}" for task in TASKS])
def test_op_equals_the_cpu(task: Task, outcomes: dict[Task, Outcome]) -> None:
    outcome = outcomes[task]
    if outcome.unknown:
        pytest.skip(f"this torch has no {task.op} in {task.dtype}")
    gap = find_gap(GAPS, task.op, task.dtype)
    if gap is not None and not outcome.passed:
        pytest.xfail(f"{gap.kind}: {gap.reason}")
    assert [failure.message for failure in outcome.failures] == []
