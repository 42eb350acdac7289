# SPDX-License-Identifier: Apache-2.0
"""The statistics and the hash of values, computed by NumPy: the meaning of the native part.

A statistic is a number that is made of a few fields. Fields are read of pieces of the values and
merged, so that pieces can be read at the same time. Both tables, the fields and the statistics, are
those of csrc/tensors/statistics.h.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 16384  # words of 8 bytes that are summed before they are mixed
PIECE = 8 * 4 * BLOCK  # bytes that are hashed together, and stay in the cache
VALUES = 1 << 14  # that are converted to float64 together, and stay in the cache
MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Words = NDArray[np.uint64]
Fields = list[Any]  # low, high, total, squares, how many are finite and how many NaN

MERGES: tuple[Callable[[Any, Any], Any], ...] = (
    *(min, max, operator.add),
    *(operator.add, operator.add, operator.add),
)
FIELDS = 2 + len(MERGES)  # of a row of a device's results: the sums of the hash are in front


class Statistics(NamedTuple):
    """Of one tensor; None: there is no finite value, or it was not asked for."""

    hash: int | None
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    norm: float | None = None
    nonfinite: int = 0

    @property
    def hex(self) -> str:
        """The hash in digits; empty: there is none."""
        return "" if self.hash is None else f"{self.hash:016x}"


def fields_of(values: Tensor) -> Fields:
    """The fields of a contiguous host tensor."""
    found: Fields = [math.inf, -math.inf, 0.0, 0.0, 0, 0]
    for start in range(0, values.numel(), VALUES):
        some = values[start : start + VALUES]
        found = merged(found, _fields_of_piece(some))
    return found


def merged(one: Fields, other: Fields) -> Fields:
    """The fields of two pieces together."""
    return [merge(a, b) for merge, a, b in zip(MERGES, one, other, strict=True)]


def _fields_of_piece(values: Tensor) -> Fields:
    wide = values.to(torch.float64).numpy()
    finite = wide[np.isfinite(wide)]
    bounds: tuple[Any, Any] = (math.inf, -math.inf)
    if finite.size:
        bounds = finite.min().item(), finite.max().item()
        if not values.is_floating_point():  # exact, also of an int64
            bounds = values.min().item(), values.max().item()
    with np.errstate(over="ignore"):
        totals = float(finite.sum()), float(np.square(finite).sum())
    return [*bounds, *totals, finite.size, int(np.isnan(wide).sum())]


def statistics_of(fields: Fields, count: int, hashed: int | None, times: int = 1) -> Statistics:
    """The statistics of `count` values that are each in the tensor so often."""
    low, high, total, squares, finite, _ = fields
    nonfinite = times * (count - finite)
    if hashed is not None and times != 1:
        hashed = avalanche((hashed + times * P1) & MASK)
    if not finite:
        return Statistics(hashed, nonfinite=nonfinite)
    return Statistics(
        hashed,
        low,
        high,
        total / finite,
        math.sqrt(squares * times),
        nonfinite,
    )


# Statistics in JSON, as they stand in a line.


@lru_cache(10_000)
def start_of(dtype: torch.dtype, shape: torch.Size) -> str:
    """What a tensor is, in front of its numbers."""
    kind = str(dtype).removeprefix("torch.")
    return f'{{"dtype":"{kind}","shape":[{",".join(map(str, shape))}],'


def json_of(found: Statistics, hash_only: bool) -> str:
    """Statistics in JSON; without a hash where there is none."""
    numbers = () if hash_only else zip(found._fields[1:], found[1:], strict=True)
    texts = [f'"{name}":{_number(value)}' for name, value in numbers]
    if found.hash is not None:
        texts.append(f'"hash":"{found.hex}"')
    return ",".join(texts)


def _number(value: float | None) -> str:
    return repr(value) if value is not None and math.isfinite(value) else "null"


# The hash.


def hash_bytes(data: NDArray[np.uint8] | bytes | memoryview) -> int:
    """A 64-bit hash of bytes that depends on the place of each of them.

    Of each block: two sums of its words times odd numbers, modulo 2**64, the second of the
    words' upper halves (a sum alone is blind to an even count of flipped top bits).
    """
    array = np.frombuffer(data, dtype=np.uint8)
    sums: list[int] = []
    for start in range(0, array.size, PIECE):
        piece = array[start : start + PIECE]
        words = piece[: piece.size // 8 * 8].view(np.uint64)
        whole = words.size // BLOCK * BLOCK
        for rows in (words[:whole].reshape(-1, BLOCK), words[None, whole:]):
            if rows.size:
                sums += [each for pair in zip(*_sums_of(rows), strict=True) for each in pair]
        if piece.size % 8:
            tail = np.zeros(8, np.uint8)
            tail[: piece.size % 8] = piece[words.size * 8 :]
            sums += [each for (each,) in _sums_of(tail.view(np.uint64)[None])]
    return hash_of_sums(array.size, sums)


def sums_of(data: bytes) -> tuple[int, int]:
    """The two sums of a block, whose last word may be a part of one; as int64."""
    words = np.frombuffer(data + bytes(-len(data) % 8), dtype=np.uint64)
    (first,), (second,) = (np.array(each, np.uint64) for each in _sums_of(words[None]))
    return int(first.view(np.int64)), int(second.view(np.int64))


def _sums_of(rows: Words) -> tuple[list[int], list[int]]:
    factors = keys()[: rows.shape[1]]
    firsts, seconds = rows @ factors, (rows >> np.uint64(32)) @ factors
    return firsts.tolist(), seconds.tolist()


def _mix(mixed: int, first: int, second: int) -> int:
    mixed = ((mixed ^ first) * P1 + (((second << 29) | (second >> 35)) & MASK)) & MASK
    return mixed ^ (mixed >> 32)


def hash_of_sums(size: int, sums: list[int]) -> int:
    """The hash of so many bytes from the two sums of each block, one after the other."""
    mixed = (size * P1 + P2) & MASK
    for first, second in zip(sums[::2], sums[1::2], strict=True):
        mixed = _mix(mixed, first, second)
    return avalanche(mixed)


def _avalanche(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(P2)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(P3)
    return value ^ (value >> np.uint64(31))


def avalanche(value: int) -> int:
    """Every bit of it decides about every bit of the result."""
    value = ((value ^ (value >> 30)) * P2) & MASK
    value = ((value ^ (value >> 27)) * P3) & MASK
    return value ^ (value >> 31)


@cache
def keys() -> Words:
    """Odd numbers without a pattern, the same everywhere."""
    with np.errstate(over="ignore"):
        state = _avalanche(np.arange(1, BLOCK + 1, dtype=np.uint64) * np.uint64(P1))
    return state | np.uint64(1)
