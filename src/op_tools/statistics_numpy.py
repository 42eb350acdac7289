"""Statistics and hash without the native part, of each piece while it is in the cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 16384  # words of 8 bytes that are summed before they are mixed
PIECE = 4 * BLOCK  # words that are looked at together
FEW = 2048  # words for which a plain product is quicker
ROW = 1024  # values that are summed as they are
ORDINARY = (1e-12, 1e15)  # the greatest magnitude, where squares of float32 are good
MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Words = NDArray[np.uint64]
Numbers = tuple[Any, Any, float | None, float | None, int]  # min, max, mean, norm, not finite


def by_pieces(flat: Tensor, hash_only: bool) -> tuple[Any, ...]:
    """The hash of dense values on the host, and their numbers unless only the hash is wanted."""
    hashing = Hashing(flat.numel() * flat.element_size())
    if hash_only or not flat.is_floating_point():
        hashed = hashing.all(flat.view(torch.uint8).numpy())
        return (hashed,) if hash_only else (hashed, *of_whole(flat))
    sums = _Sums()
    step = PIECE * 8 // flat.element_size()
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step]
        sums.add(piece if piece.dtype in WIDE else piece.to(torch.float32))  # exact
        hashing.add(piece.view(torch.uint8).numpy())
    return hashing.end(), *(sums.numbers(flat.numel()) if sums.finite else _of_finite(flat))


WIDE = (torch.float32, torch.float64)


class _Sums:
    """The numbers of pieces, for as long as all values are finite."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.total = self.squares = 0.0
        self.finite = True

    def add(self, piece: Tensor) -> None:
        array = piece.numpy()
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            self.finite = False
        if not self.finite:
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        fits = ORDINARY[0] < max(-low, high) < ORDINARY[1]
        if fits and piece.dtype == torch.float32 and array.size > 8 * ROW:
            rows = array.size // ROW * ROW
            self._add_rows(piece[:rows].view(-1, ROW))
            array = array[rows:]
        wide = array.astype(np.float64)
        self.total += float(wide.sum())
        self.squares += float(np.dot(wide, wide))

    def _add_rows(self, rows: Tensor) -> None:
        """Each row in float32, the rows together in float64."""
        self.total += float(rows.sum(1).sum(dtype=torch.float64))
        norms = torch.linalg.vector_norm(rows, dim=1).double()
        self.squares += float(norms.dot(norms))

    def numbers(self, count: int) -> Numbers:
        return self.low, self.high, self.total / count, math.sqrt(self.squares), 0


def _of_finite(flat: Tensor) -> Numbers:
    wide = flat if flat.dtype in WIDE else flat.to(torch.float32)
    finite = wide[wide.isfinite()]
    bad = flat.numel() - finite.numel()
    if not finite.numel():
        return None, None, None, None, bad
    return (*by_pieces(finite, False)[1:5], bad)


def of_whole(flat: Tensor) -> Numbers:
    array = (flat.to(torch.uint8) if flat.dtype == torch.bool else flat).numpy()
    wide = array.astype(np.float64)
    mean, norm = float(wide.sum()) / array.size, math.sqrt(float(np.dot(wide, wide)))
    return int(array.min()), int(array.max()), mean, norm, 0


# The hash.


def hash_bytes(data: NDArray[np.uint8] | bytes | memoryview) -> int:
    """A 64-bit hash of bytes that depends on the place of each of them.

    Of each block: two sums of its words times odd numbers, modulo 2**64, the second of the
    words' upper halves (a sum alone is blind to an even count of flipped top bits).
    """
    array = np.frombuffer(data, dtype=np.uint8)
    return Hashing(array.size).all(array)


class Hashing:
    """The hash of bytes that come one piece after the other, each but the last a whole `PIECE`."""

    def __init__(self, size: int) -> None:
        self._mixed = (size * P1 + P2) & MASK

    def all(self, array: NDArray[np.uint8]) -> int:
        """The hash of what is there at once."""
        for start in range(0, array.size, PIECE * 8):
            self.add(array[start : start + PIECE * 8])
        return self.end()

    def add(self, array: NDArray[np.uint8]) -> None:
        words = array[: array.size // 8 * 8].view(np.uint64)
        for rows in _rows(words):
            for first, second in zip(*_sums_of(rows), strict=True):
                self._mixed = _mix(self._mixed, first, second)
        if array.size % 8:
            tail = np.zeros(8, np.uint8)
            tail[: array.size % 8] = array[words.size * 8 :]
            self.add(tail)

    def end(self) -> int:
        return avalanche(self._mixed)


def sums_of(data: bytes) -> tuple[int, int]:
    """The two sums of a block, whose last word may be a part of one; as int64."""
    words = np.frombuffer(data + bytes(-len(data) % 8), dtype=np.uint64)
    (first,), (second,) = (np.array(each, np.uint64) for each in _sums_of(words[None]))
    return int(first.view(np.int64)), int(second.view(np.int64))


def _rows(words: Words) -> Iterator[Words]:
    """Whole blocks as rows, and then the rest as one."""
    whole = words.size // BLOCK
    if whole:
        yield words[: whole * BLOCK].reshape(whole, BLOCK)
    if words.size % BLOCK:
        yield words[whole * BLOCK :][None]


def _sums_of(rows: Words) -> tuple[list[int], list[int]]:
    factors = keys()[: rows.shape[1]]
    upper = _local.upper[: rows.size].reshape(rows.shape)
    np.right_shift(rows, _HALF, out=upper)
    if rows.size <= FEW:
        return [int(np.dot(rows[0], factors))], [int(np.dot(upper[0], factors))]
    firsts, seconds = np.einsum("ij,j->i", rows, factors), np.einsum("ij,j->i", upper, factors)
    return firsts.tolist(), seconds.tolist()


_HALF = np.uint64(32)


class _Local(threading.local):
    def __init__(self) -> None:
        self.upper = np.empty(PIECE, np.uint64)


_local = _Local()


def _mix(mixed: int, first: int, second: int) -> int:
    mixed = ((mixed ^ first) * P1 + (((second << 29) | (second >> 35)) & MASK)) & MASK
    return mixed ^ (mixed >> 32)


def hash_of_sums(size: int, sums: list[int]) -> int:
    """The hash of so many bytes from the two sums of each block, one after the other."""
    mixed = (size * P1 + P2) & MASK
    for first, second in zip(sums[::2], sums[1::2], strict=True):
        mixed = _mix(mixed, first, second)
    return avalanche(mixed)


def hashes_of_sums(
    sizes: Words, sums: Words, firsts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Words:
    """The same of many: how many bytes, and which rows of sums are theirs, of all blocks."""
    with np.errstate(over="ignore"):
        mixed = sizes * np.uint64(P1) + np.uint64(P2)
        for block in range(int(lengths.max(initial=0))):
            some = np.flatnonzero(lengths > block)
            first, second = sums[firsts[some] + block].T
            turned = (second << np.uint64(29)) | (second >> np.uint64(35))
            made = (mixed[some] ^ first) * np.uint64(P1) + turned
            mixed[some] = made ^ (made >> np.uint64(32))
        return _avalanche(mixed)


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
