"""False alarms and misses of the judge, counted over seeded bugs and correct variants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.diopi.conformance import corpus

FOUND = 0.98  # of the bugs, at least


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors, much waiting for each other otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", [5, pytest.param(77, marks=pytest.mark.slow)])
def test_the_judge_finds_bugs_and_lets_correct_kernels_pass(seed: int) -> None:
    outcomes = [
        row
        for group in corpus.GROUPS
        for dtype in corpus.DTYPES
        for row in corpus.run(group, dtype, seed)
    ]
    alarms = [row for row in outcomes if not row.is_bug and row.noticed]
    bugs = [row for row in outcomes if row.is_bug]
    missed = [row for row in bugs if not row.noticed]
    print(f"{len(outcomes) - len(bugs)} variants, {len(alarms)} flagged; {len(bugs)} bugs, "
          f"{len(missed)} missed")  # fmt: skip
    assert not alarms, "\n".join(map(str, alarms))
    assert len(missed) <= (1 - FOUND) * len(bugs), "\n".join(map(str, missed))
