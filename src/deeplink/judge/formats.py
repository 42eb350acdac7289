# SPDX-License-Identifier: Apache-2.0
"""Floating types as formats: precision, range, and the spacing of values around a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A floating type. `digits` counts the hidden bit;
    `least` is the exponent of the smallest normal.
    """

    digits: int
    least: int
    largest: float

    @property
    def roundoff(self) -> float:
        """Half the distance from 1 to the next number."""
        return 2.0**-self.digits

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.least

    @property
    def smallest(self) -> float:
        """The least positive number, which is the spacing of the subnormal numbers."""
        return 2.0 ** (self.least + 1 - self.digits)

    @property
    def is_half(self) -> bool:
        """Whether the type is narrower than float32:
        kernels compute such types in float32 and round once.
        """
        return self.digits < 24


_REAL = {
    torch.float64: Format(53, -1022, 1.7976931348623157e308),
    torch.float32: Format(24, -126, 3.4028234663852886e38),
    torch.float16: Format(11, -14, 65504.0),
    torch.bfloat16: Format(8, -126, 3.3895313892515355e38),
    torch.float8_e4m3fn: Format(4, -6, 448.0),
    torch.float8_e5m2: Format(3, -14, 57344.0),
}
FORMATS = _REAL | {
    torch.complex128: _REAL[torch.float64],
    torch.complex64: _REAL[torch.float32],
    torch.complex32: _REAL[torch.float16],
}

_EXPONENT = 0x7FF0000000000000


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether a type is floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def coarser(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the type with fewer digits of two; a type that is not floating does not count."""
    if second not in FORMATS or first not in FORMATS:
        return first if first in FORMATS else second
    return second if FORMATS[second].digits < FORMATS[first].digits else first


def spacing(values: Tensor, form: Format) -> Tensor:
    """Return the distance between adjacent numbers of the format around each float64 value, at
    least
    the distance at its smallest normal number.
    """
    bits = values.contiguous().view(torch.int64)
    power = (bits & _EXPONENT).view(torch.float64)  # 2 ** floor(log2 |value|), from its bits
    return power.mul_(2.0 ** (1 - form.digits)).clamp_(min=2.0 ** (form.least + 1 - form.digits))
