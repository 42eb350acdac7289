"""The smallest set with which a check passes: the result, and the number of checks."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_tools.diagnosis.bisect.ddmin import Exhausted, Search

SIZES = st.integers(2, 1000)


def search_for(
    bad: set[int], count: int, suspects: list[int] | None = None
) -> tuple[set[int], int]:
    """Return the result for a check that passes when all of `bad` are moved, and its checks."""
    search = Search(list(range(count)), lambda some: bad <= set(some))  # type: ignore[arg-type]
    found = search.run(suspects or [])
    return set(found), search.checks  # type: ignore[arg-type]


@given(SIZES, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_one_bad_operator_takes_log2_and_one_check(count: int, chance: random.Random) -> None:
    bad = {chance.randrange(count)}
    found, checks = search_for(bad, count)
    assert found == bad
    # the runs before it: as it is, everything; together at most log2(n) + 3
    assert checks + 2 <= math.ceil(math.log2(count)) + 3


@given(SIZES, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_two_that_act_together_take_at_most_forty_runs(count: int, chance: random.Random) -> None:
    bad = {chance.randrange(count), chance.randrange(count)}
    found, checks = search_for(bad, count)
    assert found == bad
    assert checks + 3 <= 40


@given(st.integers(8, 300), st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_several_are_found_exactly(count: int, many: int, chance: random.Random) -> None:
    bad = {chance.randrange(count) for _ in range(many)}
    found, checks = search_for(bad, count)
    assert found == bad
    assert checks <= (len(bad) + 1) * (math.ceil(math.log2(count)) + 2) + len(bad) ** 2


def test_a_right_suspect_is_found_by_one_check() -> None:
    assert search_for({700}, 1000, suspects=[700]) == ({700}, 1)


def test_a_wrong_suspect_costs_one_check() -> None:
    without = search_for({700}, 1000)[1]
    found, checks = search_for({700}, 1000, suspects=[3])
    assert found == {700}
    assert checks <= without + 1


def test_suspects_that_are_not_all_faulty_are_distinguished() -> None:
    found, checks = search_for({5, 9}, 1000, suspects=[5, 6, 7, 8, 9])
    assert found == {5, 9}
    assert checks <= 8


@given(st.integers(2, 40), st.integers(0, 2**32))
@settings(max_examples=100)
def test_what_is_found_passes_and_none_of_it_can_be_left_out(count: int, seed: int) -> None:
    """More may hurt as well: the check returns any answer, but an equal one each time."""

    def check(some: frozenset[object]) -> bool:
        if len(some) == count:
            return True
        return bool(some) and random.Random(f"{seed}{sorted(some)}").random() < 0.5  # type: ignore[type-var]

    found = Search(list(range(count)), check).run()
    assert check(frozenset(found))
    if len(found) > 1:
        last_dropped = [frozenset(found) - {item} for item in found]
        assert not all(map(check, last_dropped))


def test_too_few_checks_end_with_the_smallest_set_that_passes() -> None:
    search = Search(list(range(1000)), lambda some: {10, 900} <= set(some), at_most=5)  # type: ignore[arg-type]
    with pytest.raises(Exhausted) as told:
        search.run()
    assert {10, 900} <= set(told.value.smallest)
    assert len(told.value.smallest) < 1000


def test_a_check_is_never_made_twice() -> None:
    made: list[frozenset[object]] = []

    def check(some: frozenset[object]) -> bool:
        made.append(some)
        return {3, 4} <= set(some)  # type: ignore[arg-type]

    Search(list(range(64)), check).run()
    assert len(made) == len(set(made))
