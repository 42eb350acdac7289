"""Which call of one run corresponds to which of another."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_tools.diagnosis.diff.alignment import Match, align
from op_tools.diagnosis.diff.recordings import Entry, Value

OPS = ("mm", "add", "mul", "native_layer_norm", "_softmax", "bmm", "gelu", "clone")


def call(number: int, op: str, module: str = "", size: int = 8, norm: float | None = None) -> Entry:
    value = Value("float32", (4, size))
    made = replace(value, norm=norm)
    return Entry(number, f"aten.{op}.default", "forward", 0, module, "m.py:1", (value,), (made,))


def network(count: int, chance: random.Random, numbers: bool) -> list[Entry]:
    """Equal layers, with the same few operators again and again."""
    return [
        call(i, chance.choice(OPS), f"blocks.{i * 12 // count}", chance.choice((8, 16)),
             chance.uniform(1, 100) if numbers else None)
        for i in range(count)
    ]  # fmt: skip


def edited(
    row: list[Entry], share: float, chance: random.Random
) -> tuple[list[Entry], dict[int, int]]:
    """Half of `share` of the calls is left out, before as many another one is put in; the truth."""
    made: list[Entry] = []
    truth = {}
    for at, entry in enumerate(row):
        drawn = chance.random()
        if drawn < share / 2:
            continue
        if drawn < share:
            made.append(replace(chance.choice(row), id=10_000 + at))
        truth[at] = len(made)
        made.append(entry)
    return made, truth


def right(found: list[Match], truth: dict[int, int]) -> float:
    pairs = {match.a: match.b for match in found if match.a is not None and match.b is not None}
    return sum(pairs.get(a) == b for a, b in truth.items()) / len(truth)


@pytest.mark.parametrize("numbers", [True, False], ids=["statistics", "names"])
@pytest.mark.parametrize("seed", range(3))
def test_calls_that_come_and_go_do_not_mislead(seed: int, numbers: bool) -> None:
    chance = random.Random(seed)
    row = network(800, chance, numbers)
    other, truth = edited(row, 0.05, chance)
    assert right(align(row, other), truth) >= 0.98


@given(st.lists(st.sampled_from(OPS), max_size=30), st.lists(st.sampled_from(OPS), max_size=30))
@settings(max_examples=60)
def test_each_call_is_there_once_whatever_the_runs_are(a: list[str], b: list[str]) -> None:
    mine = [call(i, op) for i, op in enumerate(a)]
    theirs = [call(i, op, size=9) for i, op in enumerate(b)]
    found = align(mine, theirs)
    assert sorted(m.a for m in found if m.a is not None) == list(range(len(a)))
    assert sorted(m.b for m in found if m.b is not None) == list(range(len(b)))


def test_a_call_that_was_moved_is_found() -> None:
    names = ["mm", "gelu", "add", "mul", "bmm"]
    mine = [call(i, op, op) for i, op in enumerate(names)]
    theirs = [call(i, op, op) for i, op in enumerate(["gelu", "add", "mul", "bmm", "mm"])]
    found = {match.a: (match.b, match.how) for match in align(mine, theirs)}
    assert found[0] == (4, "moved")
    assert [found[i][0] for i in range(1, 5)] == [0, 1, 2, 3]


def test_two_calls_that_became_one_are_paired_by_the_result() -> None:
    mine = [call(0, "gelu", "a"), call(1, "mm", "fc"), call(2, "add", "fc"), call(3, "mul", "b")]
    theirs = [call(0, "gelu", "a"), call(1, "addmm", "fc"), call(2, "mul", "b")]
    found = align(mine, theirs)
    assert Counter(match.how for match in found) == {"same": 2, "fused": 1, "only a": 1}
    assert next(match for match in found if match.how == "fused").a == 2


def test_a_forward_pass_that_is_made_again_is_no_stranger() -> None:
    mine = [call(0, "mm", "fc"), call(1, "gelu", "act"), call(2, "mul", "back")]
    again = [call(3, "mm"), call(4, "gelu")]
    found = align(mine, [*mine[:2], *again, mine[2]])
    assert [match.how for match in found] == ["same", "same", "recomputed", "recomputed", "same"]


def test_runs_that_count_their_steps_from_different_numbers_are_paired() -> None:
    mine = [replace(call(i, "mm"), step=i) for i in range(4)]
    theirs = [replace(call(i, "mm"), step=1000 + i) for i in range(4)]
    assert [(m.a, m.b) for m in align(mine, theirs)] == [(i, i) for i in range(4)]


def test_a_long_piece_without_anything_unique_is_aligned() -> None:
    chance = random.Random(1)
    row = [call(i, chance.choice(("mm", "add"))) for i in range(3200)]
    other = row[:1000] + row[1010:]
    pairs = [match for match in align(row, other) if match.a is not None and match.b is not None]
    assert len(pairs) >= 3100
