"""False alarms and misses of the judge, counted over seeded bugs and correct variants."""

from __future__ import annotations

import pytest
import torch

from tests.diopi.conformance import corpus

FOUND = 0.98  # of the bugs, at least
QUICK = ("sum", "matmul", "layer_norm", "gelu", "add")


def _count(groups: list[corpus.Group], dtypes: tuple[torch.dtype, ...], seed: int) -> None:
    outcomes = [row for g in groups for dtype in dtypes for row in corpus.run(g, dtype, seed)]
    alarms = [row for row in outcomes if not row.is_bug and row.noticed]
    bugs = [row for row in outcomes if row.is_bug]
    missed = [row for row in bugs if not row.noticed]
    print(f"{len(outcomes) - len(bugs)} variants, {len(alarms)} flagged; {len(bugs)} bugs, "
          f"{len(missed)} missed")  # fmt: skip
    assert not alarms, "\n".join(map(str, alarms))
    assert len(missed) <= (1 - FOUND) * len(bugs), "\n".join(map(str, missed))


def test_the_judge_finds_bugs_and_lets_correct_kernels_pass() -> None:
    groups = [group for group in corpus.GROUPS if group.name in QUICK]
    _count(groups, (torch.float32, torch.bfloat16), seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 77])
def test_the_whole_corpus(seed: int) -> None:
    _count(list(corpus.GROUPS), corpus.DTYPES, seed)
