# SPDX-License-Identifier: Apache-2.0
"""Comparison of two recorded tensors, in one pass over their bytes in the file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from op_tools.core import native_library
from op_tools.diagnosis.diff.recordings import Value
from op_tools.tensors.statistics import NATIVE

_PARTS = {"complex64": "float32", "complex128": "float64"}  # of complex numbers
# The error of a result that rounding explains, relative to its size, by type.
_STEP = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}


@dataclass(frozen=True)
class Compared:
    """The differences between two tensors."""

    error: float  # |a - b| / |a|, of whole tensors; inf: a nan on one side, other shapes
    differing: int | None = None  # elements
    largest: float | None = None  # difference
    bytes: int = 0  # that were read
    exact: bool = True  # else by statistics, which give a lower bound

    @property
    def same(self) -> bool:
        return self.error == 0 and not self.differing


SAME = Compared(0.0, 0, 0.0)


def compared(a: Value, b: Value) -> Compared | None:
    """Compare two values; None if the values are unknown."""
    if a.shape != b.shape or (a.dtype != b.dtype and not (_floats(a) and _floats(b))):
        return Compared(math.inf)
    if a.hash and a.hash == b.hash and a.dtype == b.dtype and a.stride == b.stride:
        return SAME
    if a.bytes is not None and b.bytes is not None:
        return _by_values(a, b)
    return _by_statistics(a, b)


def step_of(dtype: str) -> float:
    """The rounding of a type; 0 for a type with exact values."""
    return _STEP.get(_PARTS.get(dtype, dtype), 0.125 if dtype.startswith("float8") else 0)


def _floats(value: Value) -> bool:
    return step_of(value.dtype) > 0


def _by_values(a: Value, b: Value) -> Compared:
    if a.dtype != b.dtype or a.stride != b.stride:
        return _by_torch(a, b)
    helper = native_library.helper()
    dtype: torch.dtype = getattr(torch, _PARTS.get(a.dtype, a.dtype))
    if helper is None or dtype not in NATIVE:
        return _by_torch(a, b)
    assert a.bytes is not None and b.bytes is not None
    one, other = a.bytes(), b.bytes()
    count = one.size // torch.empty(0, dtype=dtype).element_size()
    differing, apart, largest, off, left, _ = helper.compare(
        one.ctypes.data, other.ctypes.data, count, NATIVE[dtype]
    )
    if differing and not dtype.is_floating_point:
        return _by_torch(a, b)  # the native pass only counts differences of integers
    return _of(differing, apart, largest, off, left, one.size + other.size)


def _of(differing: int, apart: int, largest: float, off: float, left: float, size: int) -> Compared:
    if apart:
        return Compared(math.inf, differing, largest, size)
    if not off:
        return Compared(0.0, differing, largest, size)
    return Compared(off / left if left else math.inf, differing, largest, size)


def _by_torch(a: Value, b: Value) -> Compared:
    one, other = a.tensor(), b.tensor()
    assert one is not None and other is not None  # both have values
    wide = torch.complex128 if one.is_complex() else torch.float64
    x, y = (t.detach().to(wide).reshape(-1).numpy() for t in (one, other))
    both = np.isfinite(x) & np.isfinite(y)
    alike = (x == y) | (np.isnan(x) & np.isnan(y))
    off = np.abs(x[both] - y[both])
    left = float(np.linalg.norm(x[both]))
    largest = float(off.max()) if off.size else 0.0
    apart = int((~both & ~alike).sum())
    size = one.nbytes + other.nbytes
    return _of(int((~alike).sum()), apart, largest, float(np.linalg.norm(off)), left, size)


def _by_statistics(a: Value, b: Value) -> Compared | None:
    if a.hash and b.hash and a.hash == b.hash and a.dtype == b.dtype:
        return SAME
    if a.nonfinite != b.nonfinite:
        return Compared(math.inf, exact=False)
    if a.norm is None or b.norm is None:
        return Compared(math.nan, None, None, exact=False) if a.hash and b.hash else None
    size = max(a.norm, 1e-300)
    off = abs(a.norm - b.norm) / size
    for one, other in zip(a.numbers, b.numbers, strict=True):
        if one is not None and other is not None:
            count = math.prod(a.shape) or 1
            scale = size / math.sqrt(count)  # of an element
            off = max(off, abs(one - other) / max(abs(one), scale, 1e-300) / math.sqrt(count))
    return Compared(off, exact=False)
