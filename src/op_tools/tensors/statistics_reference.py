"""The reference of the statistics and the hash: what the native part computes, by NumPy."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

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
Numbers = tuple[Any, Any, float | None, float | None, int]  # min, max, mean, norm, not finite


def numbers(flat: Tensor) -> Numbers:
    """Min, max, mean and norm of the finite values of a contiguous host tensor; the other count."""
    if not flat.is_floating_point() and flat.numel():
        return _of_whole(flat)
    low, high, total, squares, count = math.inf, -math.inf, 0.0, 0.0, 0
    for start in range(0, flat.numel(), VALUES):
        wide = flat[start : start + VALUES].to(torch.float64).numpy()
        finite = np.isfinite(wide)
        if not finite.all():
            wide = wide[finite]
        count += wide.size
        low, high = float(wide.min(initial=low)), float(wide.max(initial=high))
        with np.errstate(over="ignore"):
            total, squares = total + float(wide.sum()), squares + float(np.square(wide).sum())
    if not count:
        return None, None, None, None, flat.numel()
    return low, high, total / count, math.sqrt(squares), flat.numel() - count


def _of_whole(flat: Tensor) -> Numbers:
    array = (flat.to(torch.uint8) if flat.dtype == torch.bool else flat).numpy()
    wide = array.astype(np.float64)
    mean, norm = float(wide.sum()) / array.size, math.sqrt(float(np.square(wide).sum()))
    return int(array.min()), int(array.max()), mean, norm, 0


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
