# SPDX-License-Identifier: Apache-2.0
"""Building blocks of the own samples: numbers of a type, calls by argument names, a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample

Maker = Callable[[torch.dtype], Iterator[Sample]]
MAKERS: dict[str, Maker] = {}
FIXED: set[str] = set()  # ops with related arguments: other values would be invalid


def makes(*names: str, fixed: bool = False) -> Callable[[Maker], Maker]:
    """Register a function that creates samples for some ops."""

    def keep(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        FIXED.update(names if fixed else ())
        return maker

    return keep


def called(**arguments: Any) -> Sample:
    """Create a call of an op, by the names of its arguments."""
    return Sample((), arguments)


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    """Create normal numbers, or small integers."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 9, shape).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide).to(dtype)


def positive(dtype: torch.dtype, *shape: int) -> Tensor:
    """Create numbers between 1/2 and 3/2."""
    return (torch.rand(shape, dtype=torch.float64) + 0.5).to(dtype)


def whole(below: int, *shape: int) -> Tensor:
    """Create indices."""
    return torch.randint(below, shape)
