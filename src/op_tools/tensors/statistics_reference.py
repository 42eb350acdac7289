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
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 16384  # words of 8 bytes that are summed before they are mixed
VALUES = 1 << 14  # values that are converted to float64 together
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
    """The statistics of one tensor; None: no finite value, or not computed."""

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

    def as_json(self, hash_only: bool) -> dict[str, Any]:
        """The statistics for a JSON file; None for a number that is not finite."""
        numbers: dict[str, Any] = {} if hash_only else self._asdict()
        values = {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in numbers.items()
            if name != "hash"
        }
        return values if self.hash is None else {**values, "hash": self.hex}


def fields_of(values: Tensor) -> Fields:
    """The fields of a contiguous host tensor."""
    fields: Fields = [math.inf, -math.inf, 0.0, 0.0, 0, 0]
    for piece in values.split(VALUES):
        wide = piece.to(torch.float64).numpy()
        finite = wide[np.isfinite(wide)]
        bounds: tuple[Any, Any] = (math.inf, -math.inf)
        if finite.size:
            exact = finite if piece.is_floating_point() else piece.long()  # float64 rounds
            bounds = exact.min().item(), exact.max().item()
        with np.errstate(over="ignore"):
            totals = float(finite.sum()), float(np.square(finite).sum())
        fields = merged(fields, [*bounds, *totals, finite.size, int(np.isnan(wide).sum())])
    return fields


def merged(one: Fields, other: Fields) -> Fields:
    """The fields of two pieces together."""
    return [merge(a, b) for merge, a, b in zip(MERGES, one, other, strict=True)]


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


# The hash.


def hash_bytes(data: NDArray[np.uint8] | bytes | memoryview) -> int:
    """A 64-bit hash of bytes that depends on the place of each of them.

    Of each block: two sums of its words times odd numbers, modulo 2**64, the second of the
    words' upper halves (a sum alone is blind to an even count of flipped top bits).
    """
    array = np.frombuffer(data, dtype=np.uint8)
    whole = array.size // 8 * 8
    words = array[:whole].view(np.uint64)
    blocks = [words[start : start + BLOCK] for start in range(0, words.size, BLOCK)]
    if whole < array.size:
        blocks.append(_padded(array[whole:].tobytes()))
    return hash_of_sums(array.size, [each for block in blocks for each in _sums(block)])


def sums_of(data: bytes) -> tuple[int, int]:
    """The two sums of a block, as int64. The last word of the block may be a part of a word."""
    first, second = (each - (each >> 63 << 64) for each in _sums(_padded(data)))
    return first, second


def _padded(data: bytes) -> Words:
    return np.frombuffer(data + bytes(-len(data) % 8), dtype=np.uint64)


def _sums(words: Words) -> tuple[int, int]:
    factors = keys()[: words.size]
    return int(words @ factors), int((words >> np.uint64(32)) @ factors)


def hash_of_sums(size: int, sums: list[int]) -> int:
    """The hash of so many bytes from the two sums of each block, one after the other."""
    mixed = (size * P1 + P2) & MASK
    for first, second in zip(sums[::2], sums[1::2], strict=True):
        rotated = ((second << 29) | (second >> 35)) & MASK
        mixed = ((mixed ^ first) * P1 + rotated) & MASK
        mixed ^= mixed >> 32
    return avalanche(mixed)


def avalanche(value: int) -> int:
    """Mix a word: each of its bits changes about half of the bits of the result."""
    value = ((value ^ (value >> 30)) * P2) & MASK
    value = ((value ^ (value >> 27)) * P3) & MASK
    return value ^ (value >> 31)


@cache
def keys() -> Words:
    """Odd numbers without a pattern, equal on every machine."""
    return np.array([avalanche(i * P1 & MASK) | 1 for i in range(1, BLOCK + 1)], dtype=np.uint64)
