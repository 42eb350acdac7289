"""What the rows of a vendor's kernel amount to, for many tensors at once: see reducing.py.

Hot path: a program's step has thousands of rows, and what Python does for each is paid for by it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from op_tools import statistics
from op_tools.statistics import Statistics
from op_tools.statistics_numpy import hash_of_sums, hashes_of_sums
from op_tools.statistics_text import written

FIELDS = 8
LOW, HIGH, TOTAL, SQUARES, FINITE = range(2, 7)
LONG = 64  # rows of a tensor from which on its hash is made alone
Rows = NDArray[np.int64]
Whole = NDArray[np.int64]
Numbers = list[list[float]]  # of all tensors: min, max, mean, norm, how many are not finite


def texts(
    rows: Rows,
    lengths: Whole,
    sizes: Whole,
    counts: Whole,
    floats: NDArray[np.bool_],
    hash_only: bool,
) -> list[str]:
    """Of tensors that have so many of the rows each, one after the other, bytes and values: their
    statistics in JSON.
    """
    hashes = hashes_of(rows, lengths, sizes)
    if hash_only:
        return [f'"hash":"{hashed:016x}"' for hashed in hashes]
    numbers = numbers_of(rows, lengths, counts, floats)
    digits = [list(map(repr, column)) for column in numbers[:4]]  # quicker than one by one
    found = [
        f'"min":{low},"max":{high},"mean":{mean},"norm":{norm},"nonfinite":{bad},'
        f'"hash":"{hashed:016x}"'
        for low, high, mean, norm, bad, hashed in zip(*digits, numbers[4], hashes, strict=True)
    ]
    none = np.array(numbers[4]) == counts  # of them is finite
    for at in np.flatnonzero(none | ~(np.array(numbers[3]) < math.inf)).tolist():
        found[at] = written(one_of(hashes, numbers, counts, at), False)
    return found


def one_of(hashes: list[int], numbers: Numbers, counts: Whole, at: int) -> Statistics:
    """Of one of them."""
    low, high, mean, norm, bad = (column[at] for column in numbers)
    if bad == counts[at]:
        return Statistics(hashes[at], nonfinite=int(bad))
    return Statistics(hashes[at], low, high, mean, norm, int(bad))


def numbers_of(rows: Rows, lengths: Whole, counts: Whole, floats: NDArray[np.bool_]) -> Numbers:
    """Without a finite value they mean nothing."""
    some = np.flatnonzero(lengths)
    firsts = (np.cumsum(lengths) - lengths)[some]
    values, finite = rows.view(np.float64), rows[:, FINITE]
    has = finite > 0
    made = [np.zeros(len(lengths)) for _ in range(4)]
    known = np.zeros(len(lengths), np.int64)
    if len(some):
        known[some] = np.add.reduceat(finite, firsts)
        made[0][some] = np.minimum.reduceat(np.where(has, values[:, LOW], math.inf), firsts)
        made[1][some] = np.maximum.reduceat(np.where(has, values[:, HIGH], -math.inf), firsts)
        for column, at in ((2, TOTAL), (3, SQUARES)):
            made[column][some] = _sums(np.where(has, values[:, at], 0.0), firsts, lengths[some])
    with np.errstate(all="ignore"):
        made[2] /= known
        made[3] = np.sqrt(made[3])
    found: Numbers = [column.tolist() for column in made]
    integers = np.flatnonzero(~floats & (lengths > 0))
    if len(integers):
        lows = np.minimum.reduceat(np.where(has, rows[:, LOW], np.iinfo(np.int64).max), firsts)
        highs = np.maximum.reduceat(np.where(has, rows[:, HIGH], np.iinfo(np.int64).min), firsts)
        for at, place in zip(np.searchsorted(some, integers), integers.tolist(), strict=True):
            found[0][place], found[1][place] = int(lows[at]), int(highs[at])
    return [*found, (counts - known).tolist()]


def _sums(values: NDArray[np.float64], firsts: Whole, lengths: Whole) -> NDArray[np.float64]:
    """Of the rows of each, rounded once."""
    found = values[firsts]
    each = values.tolist()
    several = np.flatnonzero(lengths > 1)
    found[several] = [
        math.fsum(each[first : first + length])
        for first, length in zip(firsts[several].tolist(), lengths[several].tolist(), strict=True)
    ]
    return found


def hashes_of(rows: Rows, lengths: Whole, sizes: Whole) -> list[int]:
    """The hashes alone."""
    sums = rows[:, :2].view(np.uint64)
    firsts = np.cumsum(lengths) - lengths
    short = lengths < LONG
    found: list[int] = hashes_of_sums(
        sizes.astype(np.uint64), sums, firsts, lengths * short
    ).tolist()
    for at in np.flatnonzero(~short).tolist():
        own = sums[firsts[at] : firsts[at] + lengths[at]]
        found[at] = hash_of_sums(int(sizes[at]), own.ravel().tolist())
    return found


def repeated(
    rows: Rows, sizes: Whole, counts: Whole, floats: NDArray[np.bool_], times: int, hash_only: bool
) -> str:
    """Of one tensor whose values are each seen so often."""
    lengths = np.array([len(rows)])
    hashes = hashes_of(rows, lengths, sizes)
    found = Statistics(hashes[0])
    if not hash_only:
        found = one_of(hashes, numbers_of(rows, lengths, counts, floats), counts, 0)
    return written(statistics.repeated(found, times), hash_only)
