# SPDX-License-Identifier: Apache-2.0
"""The precision of a device's products: what the program allows and what its libraries use.

A vendor's module (`Vendor.precision`) has one function, `precision()`. It is called for each call
of an operator, because programs change such settings while they run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from deeplink import vendor


@dataclass(frozen=True)
class Factors:
    """The number of digits, including the hidden one, that factors of products are rounded to."""

    format: str
    digits: int
    allowed_by: str  # name of the setting that allows it

    @property
    def roundoff(self) -> float:
        return 2.0**-self.digits


def tf32(allowed_by: str) -> Factors:
    """Return the factors of TF32, which keep ten of a float32's 23 bits."""
    return Factors("TF32", 11, allowed_by)


@dataclass(frozen=True)
class Sums:
    """A type in which partial sums of products of a given type may be stored."""

    format: str
    allowed_by: str  # name of the setting that allows it


@dataclass(frozen=True)
class Precision:
    """The allowed precision by kind of product; None: full float32.

    It includes the relative error of tanh and sigmoid inside of recurrent layers, where that is
    more
    than rounding, and the narrow types in which partial sums of matrix products may be stored.
    """

    matmul: Factors | None = None
    convolution: Factors | None = None
    recurrent: Factors | None = None
    recurrent_functions: float = 0.0
    sums: tuple[Sums, ...] = ()


EXACT = Precision()


def of_device(kind: str) -> Precision:
    """Return the precision in force on a kind of device."""
    return _query(kind)()


@cache
def _query(kind: str) -> Callable[[], Precision]:
    module = vendor.module_for(kind, "precision")
    if not module:
        return lambda: EXACT
    found: Callable[[], Precision] = importlib.import_module(module).precision
    return found
