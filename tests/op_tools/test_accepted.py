"""Errors like those that were accepted before."""

from __future__ import annotations

import math

import torch

from deeplink.judge import Verdict
from op_tools.accepted import EVERY, FIRST, Accepted

RIGHT = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
PASSED = Verdict(True, "envelope")


def off(by: float, at: int = 3) -> torch.Tensor:
    made = RIGHT.float()
    made[at] += by
    return made


def ready(verdict: Verdict = PASSED) -> Accepted:
    """One whose first calls have been judged."""
    accepted = Accepted()
    accepted.add("kind", off(1e-5), RIGHT, verdict)
    for _ in range(FIRST):
        assert accepted.verdict("kind", off(0.0), RIGHT) is None
    return accepted


def test_an_error_like_an_accepted_one_passes_with_its_figures() -> None:
    found = ready().verdict("kind", off(1e-5, at=40), RIGHT)
    assert found is not None and found.passed and found.rule == "as accepted before"
    assert 0.9e-5 < found.max_abs < 1.1e-5


def test_a_larger_error_a_nan_and_another_kind_are_judged() -> None:
    accepted = ready()
    for wrong in (off(1e-4), off(math.nan), off(math.inf), RIGHT.float() + 4e-6):
        assert accepted.verdict("kind", wrong, RIGHT) is None
    assert accepted.verdict("another", off(0.0), RIGHT) is None


def test_a_larger_error_passes_where_half_of_the_bound_is_left() -> None:
    accepted = ready(Verdict(True, "envelope", share=0.2))
    assert accepted.verdict("kind", off(2.4e-5), RIGHT) is not None
    assert accepted.verdict("kind", off(2.6e-5), RIGHT) is None


def test_now_and_again_all_is_judged() -> None:
    accepted = ready()
    left = [accepted.verdict("kind", off(0.0), RIGHT) is None for _ in range(EVERY - FIRST)]
    assert left == [*[False] * (EVERY - FIRST - 1), True]


def test_what_failed_or_needed_no_long_look_is_not_remembered() -> None:
    for verdict in (Verdict(False, "bound"), Verdict(True, "spacing")):
        accepted = Accepted()
        accepted.add("kind", off(1e-5), RIGHT, verdict)
        for _ in range(FIRST + 1):
            assert accepted.verdict("kind", off(0.0), RIGHT) is None


def test_only_what_lets_more_pass_is_a_change() -> None:
    accepted = Accepted()
    for error, changes in ((1e-6, 1), (1e-7, 1), (1e-5, 2)):
        accepted.add("kind", off(error), RIGHT, PASSED)
        assert accepted.changes == changes
    assert accepted.limits("kind") > (1e-6, 1e-7)
    assert accepted.limits("another") == (-1.0, -1.0)
