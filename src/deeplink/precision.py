# SPDX-License-Identifier: Apache-2.0
"""How exact a device's products may be: as the program allows it, and as its libraries are.

A vendor's module (`Vendor.precision`) has one function, `precision()`, asked at each call: programs
change such settings as they go.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from deeplink import vendor


@dataclass(frozen=True)
class Factors:
    """What the factors of products are rounded to: so many digits, the hidden one counted."""

    format: str
    digits: int
    allowed_by: str  # the setting

    @property
    def roundoff(self) -> float:
        return 2.0**-self.digits


def tf32(allowed_by: str) -> Factors:
    """Ten bits of a float32's 23 are left."""
    return Factors("TF32", 11, allowed_by)


@dataclass(frozen=True)
class Sums:
    """A type in which partial sums of products of this type may be stored on the way."""

    format: str
    allowed_by: str  # the setting


@dataclass(frozen=True)
class Precision:
    """What is allowed for each kind of product (None: float32 is float32), what the tanh and
    sigmoid inside of recurrent layers err, relatively, where that is more than rounding, and
    which narrow types the partial sums of matrix products may be stored in.
    """

    matmul: Factors | None = None
    convolution: Factors | None = None
    recurrent: Factors | None = None
    recurrent_functions: float = 0.0
    sums: tuple[Sums, ...] = ()


EXACT = Precision()


def of_device(kind: str) -> Precision:
    """What holds now on a kind of device."""
    return _asked(kind)()


@cache
def _asked(kind: str) -> Callable[[], Precision]:
    module = vendor.module_for(kind, "precision")
    if not module:
        return lambda: EXACT
    found: Callable[[], Precision] = importlib.import_module(module).precision
    return found
