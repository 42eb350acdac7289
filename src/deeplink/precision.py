"""How exact a program lets a device be: products of float32 whose factors may be rounded first.

A vendor's module (`Vendor.precision`) has one function, `products()`, asked at each call: programs
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
    """What the factors are rounded to: a format of so many digits, the hidden one counted."""

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
class Products:
    """What is allowed for each kind of product; None: float32 is float32."""

    matmul: Factors | None = None
    convolution: Factors | None = None
    recurrent: Factors | None = None


EXACT = Products()


def products(device: str) -> Products:
    """What the program allows now on a kind of device."""
    return _asked(device)()


@cache
def _asked(device: str) -> Callable[[], Products]:
    module = vendor.module_for(device, "precision")
    if not module:
        return lambda: EXACT
    found: Callable[[], Products] = importlib.import_module(module).products
    return found
