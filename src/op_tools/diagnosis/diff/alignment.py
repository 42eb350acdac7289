# SPDX-License-Identifier: Apache-2.0
"""Alignment of the calls of two runs, with calls inserted, removed, moved, fused or repeated.

Within a step, calls that occur once in both runs are anchors, and the best alignment between them
is computed. The remaining calls are searched in the whole step. Never raises: two different
programs have no pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from op_tools.diagnosis.diff.recordings import Entry

How = Literal["same", "moved", "fused", "recomputed", "only a", "only b"]
GAP = -2  # what a call without a partner costs
LARGE = 3000  # calls of a section above which only equal names are aligned
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Match:
    """Places in the two runs; None: no counterpart."""

    a: int | None
    b: int | None
    how: How


def align(a: Sequence[Entry], b: Sequence[Entry]) -> list[Match]:
    """Pair the calls of two runs: each call once, in the order of the first run."""
    by_step = [_by_step(row) for row in (a, b)]
    few = min(len(steps) for steps in by_step)
    if 2 * len(by_step[0].keys() & by_step[1].keys()) < few:
        # the runs count from different numbers
        by_step = [dict(enumerate(steps[key] for key in sorted(steps))) for steps in by_step]
    found: list[Match] = []
    for step in sorted(set(by_step[0]) | set(by_step[1])):
        found += _step(a, b, by_step[0].get(step, []), by_step[1].get(step, []))
    return found


def _by_step(row: Sequence[Entry]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for at, entry in enumerate(row):
        found[entry.step].append(at)
    return found


def _step(
    a: Sequence[Entry], b: Sequence[Entry], mine: list[int], theirs: list[int]
) -> list[Match]:
    rows = Rows(a, b, mine, theirs)
    pairs = dict(rows.aligned())
    left = [i for i in range(len(mine)) if i not in pairs]
    taken = set(pairs.values())
    free = [j for j in range(len(theirs)) if j not in taken]
    how: dict[int, How] = {}
    for i, j, kind in _elsewhere(rows, left, free):
        pairs[i] = j
        how[i] = kind
    again = _again(rows, set(pairs.values()))
    return _ordered(mine, theirs, pairs, how, again)


def _ordered(
    mine: list[int], theirs: list[int], pairs: dict[int, int], how: dict[int, How], again: set[int]
) -> list[Match]:
    """Sort by the order of A; a call that only B has follows its predecessor."""
    behind: dict[int, list[int]] = defaultdict(list)
    partner = {j: i for i, j in pairs.items()}
    last = -1
    for j in range(len(theirs)):
        if j in partner:
            last = partner[j]
        else:
            behind[last].append(j)
    found: list[Match] = []
    for i in range(-1, len(mine)):
        if i >= 0:
            if i in pairs:
                found.append(Match(mine[i], theirs[pairs[i]], how.get(i, "same")))
            else:
                found.append(Match(mine[i], None, "only a"))
        for j in behind[i]:
            kind: How = "recomputed" if j in again else "only b"
            found.append(Match(None, theirs[j], kind))
    return found


class Rows:
    """The calls of a step in both runs, as numbers for fast comparison."""

    def __init__(
        self, a: Sequence[Entry], b: Sequence[Entry], mine: list[int], theirs: list[int]
    ) -> None:
        self.a, self.b = [a[i] for i in mine], [b[j] for j in theirs]
        self._codes = [self._of(part) for part in PARTS]

    def _of(self, part: Callable[[Entry], Hashable]) -> tuple[Ints, Ints]:
        numbers: dict[Hashable, int] = {}

        def coded(row: list[Entry]) -> Ints:
            codes = [numbers.setdefault(part(entry), len(numbers)) for entry in row]
            return np.array(codes, dtype=np.int64)

        return coded(self.a), coded(self.b)

    def aligned(self) -> Iterator[tuple[int, int]]:
        """Pairs, increasing on both sides."""
        ends = (len(self.a), len(self.b))
        anchors = [(-1, -1), *self._anchors(), ends]
        for (i, j), (next_i, next_j) in pairwise(anchors):
            yield from self._between(i + 1, next_i, j + 1, next_j)
            if (next_i, next_j) != ends:
                yield next_i, next_j

    def _anchors(self) -> list[tuple[int, int]]:
        """Calls that are unique on both sides, as many as are in the same order."""
        once = [_once(tuple(map(_key, row))) for row in (self.a, self.b)]
        pairs = sorted((once[0][key], once[1][key]) for key in once[0].keys() & once[1].keys())
        return _rising(pairs)

    def _between(self, i0: int, i1: int, j0: int, j1: int) -> Iterator[tuple[int, int]]:
        """The best alignment of a section; equal ends, which are most of it, go first."""
        while i0 < i1 and j0 < j1 and self._equal(i0, j0):
            yield i0, j0
            i0, j0 = i0 + 1, j0 + 1
        tail = []
        while i0 < i1 and j0 < j1 and self._equal(i1 - 1, j1 - 1):
            i1, j1 = i1 - 1, j1 - 1
            tail.append((i1, j1))
        if i0 < i1 and j0 < j1:
            if max(i1 - i0, j1 - j0) > LARGE:
                yield from self._split(i0, i1, j0, j1)
            else:
                yield from ((i0 + i, j0 + j) for i, j in self._best(i0, i1, j0, j1))
        yield from reversed(tail)

    def _equal(self, i: int, j: int) -> bool:
        return all(int(x[i]) == int(y[j]) for x, y in self._codes)

    def _split(self, i0: int, i1: int, j0: int, j1: int) -> Iterator[tuple[int, int]]:
        """Split a long section at a pair of equal calls near the middle."""
        middle = (i0 + i1) // 2
        wanted = j0 + (j1 - j0) * (middle - i0) // (i1 - i0)
        score = self._scores(middle, j0, j1)
        near = np.abs(np.arange(j0, j1) - wanted)
        best = int(np.argmax(score * LARGE - near)) + j0
        if score[best - j0] <= 0:
            return
        yield from self._between(i0, middle, j0, best)
        yield middle, best
        yield from self._between(middle + 1, i1, best + 1, j1)

    def _scores(self, i: int, j0: int, j1: int) -> Ints:
        """The similarity of a call of A to some calls of B; below 0 for another operator."""
        total = np.zeros(j1 - j0, dtype=np.int64)
        for (x, y), weight in zip(self._codes, WEIGHTS, strict=True):
            total += np.where(y[j0:j1] == x[i], weight, 0)
        same = self._codes[0][1][j0:j1] == self._codes[0][0][i]
        return np.where(same, total, -8)

    def _best(self, i0: int, i1: int, j0: int, j1: int) -> list[tuple[int, int]]:
        """The Needleman-Wunsch algorithm by rows: a gap is a running maximum."""
        rows, columns = i1 - i0, j1 - j0
        slope = GAP * np.arange(columns + 1, dtype=np.int64)
        row = slope.copy()
        came = np.zeros((rows + 1, columns + 1), dtype=np.int8)  # 0 left, 1 up, 2 together
        for i in range(rows):
            together = row[:-1] + self._scores(i0 + i, j0, j1)
            up = row + GAP
            best = up.copy()
            best[1:] = np.maximum(up[1:], together)
            came[i + 1] = 1
            came[i + 1, 1:][together >= up[1:]] = 2
            row = np.maximum.accumulate(best - slope) + slope
            came[i + 1][row > best] = 0
        return _traced(came)


def _traced(came: NDArray[np.int8]) -> list[tuple[int, int]]:
    found = []
    i, j = came.shape[0] - 1, came.shape[1] - 1
    while i > 0 and j > 0:
        way = came[i, j]
        if way == 2:
            found.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif way == 1:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def _shapes(entry: Entry) -> Hashable:
    return tuple(value.shape for value in entry.outputs)


def _hashes(entry: Entry) -> Hashable:
    return tuple(value.hash for value in entry.outputs if value.hash) or id(entry)


def _sizes(entry: Entry) -> Hashable:
    """Results rounded to two digits: most have equal sizes in both runs."""
    return tuple(f"{v.norm:.1e}" for v in entry.outputs if v.norm is not None) or id(entry)


# Common properties of two calls, and their scores.
PARTS: tuple[Callable[[Entry], Hashable], ...] = (
    lambda entry: _base(entry.op),
    lambda entry: entry.module,
    lambda entry: entry.direction,
    lambda entry: entry.site,
    _shapes,
    lambda entry: tuple(value.shape for value in entry.inputs),
    _hashes,
    _sizes,
)
WEIGHTS = (2, 3, 1, 2, 3, 2, 6, 3)


def _base(op: str) -> str:
    """The operator without its overload and its in-place suffix."""
    parts = op.split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1].rstrip("_")
    return op


def _key(entry: Entry) -> Hashable:
    return (
        entry.op,
        entry.module,
        entry.direction,
        entry.site,
        tuple((value.dtype, value.shape) for value in (*entry.inputs, *entry.outputs)),
    )


def _once(keys: Sequence[Hashable]) -> dict[Hashable, int]:
    seen: dict[Hashable, int] = {}
    for at, key in enumerate(keys):
        seen[key] = -1 if key in seen else at
    return {key: at for key, at in seen.items() if at >= 0}


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence that increases on both sides."""
    ends: list[int] = []  # the smallest end of a subsequence of each length
    at: list[int] = []
    before: list[int] = [-1] * len(pairs)
    for number, (_, j) in enumerate(pairs):
        place = bisect_left(ends, j)
        before[number] = at[place - 1] if place else -1
        if place == len(ends):
            ends.append(j)
            at.append(number)
        else:
            ends[place], at[place] = j, number
    found = []
    number = at[-1] if at else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


# The remaining calls.


def _elsewhere(rows: Rows, left: list[int], free: list[int]) -> Iterator[tuple[int, int, How]]:
    """Pair calls that were moved, and calls whose result another operator computes."""
    for key, how in (
        (_key, "moved"),
        (lambda e: (_base(e.op), e.module, e.direction, _shapes(e)), "moved"),
    ):
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        for j in free:
            kinds[key(rows.b[j])].append(j)
        for i in list(left):
            same = kinds.get(key(rows.a[i]))
            if same:
                j = min(same, key=lambda j: abs(j - i))
                same.remove(j)
                left.remove(i)
                free.remove(j)
                yield i, j, how  # type: ignore[misc]
    results: dict[Hashable, list[int]] = defaultdict(list)
    for i in left:
        results[_result(rows.a[i])].append(i)
    for j in list(free):
        same = [i for i in results.get(_result(rows.b[j]), []) if i in left]
        if same:
            i = same[-1]  # the last of the fused calls has the result
            left.remove(i)
            free.remove(j)
            yield i, j, "fused"


def _result(entry: Entry) -> Hashable:
    return entry.module, entry.direction, _shapes(entry)


def _again(rows: Rows, taken: set[int]) -> set[int]:
    """Pair calls that B repeats: a forward call whose twin has a counterpart."""
    twins = {_key(rows.b[j])[:1] + _key(rows.b[j])[4:] for j in taken}  # type: ignore[index]
    return {
        j
        for j in range(len(rows.b))
        if j not in taken and _key(rows.b[j])[:1] + _key(rows.b[j])[4:] in twins  # type: ignore[index]
    }
