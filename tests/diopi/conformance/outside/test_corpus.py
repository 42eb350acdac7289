"""Misses and false alarms over the corpus of outside kernels, counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.diopi.conformance.outside import judging, right, wrong

WRONG, RIGHT = judging.functions(wrong), judging.functions(right)
FOUND = 38 / 40  # of the bugs, at least
# the check that must find a bug which the values alone may not show
NAMED = {
    "relu__changes_its_argument": "inputs",
    "amax__returns_its_argument": "alias",
    "silu__writes_past_its_argument": "guard",
    "tanh__caches_by_identity": "cache",
    "gelu__caches_by_address": "cache",
    "exp__returns_the_same_buffer": "cache",
    "softmax__calls_torch": "torch",
    "mm__calls_torch": "torch",
    "linear__calls_torch": "torch",
    "exp__leaves_the_tail": "uninitialised",
    "cumsum__adds_to_fresh_memory": "uninitialised",
    "sigmoid__returns_fresh_memory": "uninitialised",
    "amax__reads_the_padding": "outside",
    "sum__reads_the_padding": "outside",
    "neg__subtracts_from_zero": "signed_zero",
    "abs__keeps_the_sign_of_zero": "signed_zero",
}
QUICK = (  # the others are in the slow tier
    "softmax__online sum__halves mm__in_numpy layer_norm__in_numpy add__in_numpy relu__chooses "
    "where__by_assignment gelu__by_erfc embedding__by_assignment topk__by_sorting"
).split()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors, much waiting for each other otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_corpus_has_40_bugs_and_40_correct_variants() -> None:
    assert len(WRONG) >= 40 and len(RIGHT) >= 40


def test_bugs_are_found() -> None:
    found = {name: judging.first_bad(name, kernel) for name, kernel in WRONG.items()}
    missed = [name for name, result in found.items() if result is None]
    print(f"{len(found)} bugs, {len(missed)} missed")
    assert len(missed) <= (1 - FOUND) * len(found), missed
    for name, check in NAMED.items():
        result = found[name]
        assert result is not None and check in {f.check for f in result.findings}, (name, result)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RIGHT]
)
def test_a_correct_variant_is_not_reported_as_faulty(name: str) -> None:
    rows = list(judging.results(judging.subject(name, RIGHT[name])))
    assert sum(row.status == "passed" for row in rows) >= 25
    assert [f"{row.case}: {row.message}" for row in rows if row.bad] == []
