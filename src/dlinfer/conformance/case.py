# SPDX-License-Identifier: Apache-2.0
"""A case: one op and its arguments, on the CPU; and the functions that create cases, by op."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
Maker = Callable[[torch.dtype], Iterator[tuple[str, dict[str, Any]]]]
CASES: dict[str, Maker] = {}  # op -> function that yields a label and the arguments of each case
FILES = ("tokens", "paged", "products", "delta")


@dataclass(frozen=True)
class Case:
    """One call of an op."""

    op: str
    label: str
    dtype: torch.dtype
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.op} {str(self.dtype).removeprefix('torch.')} {self.label}"


def makes(op: str) -> Callable[[Maker], Maker]:
    """Register the function that creates an op's cases."""

    def keep(maker: Maker) -> Maker:
        CASES[op] = maker
        return maker

    return keep


def cases(op: str, dtype: torch.dtype) -> Iterator[Case]:
    """Return the cases of an op in one type, equal at each call."""
    _load()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for label, arguments in CASES[op](dtype):
            yield Case(op, label, dtype, arguments)


@cache
def _load() -> None:
    for name in FILES:
        importlib.import_module(f"{__package__}.{name}")


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    """Create normal numbers."""
    return torch.randn(shape).to(dtype)


def apart(tensor: Tensor) -> Tensor:
    """Copy values into a part of a larger tensor, so that rows are not adjacent."""
    room = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), torch.nan).to(tensor.dtype)
    room[..., : tensor.shape[-1]] = tensor
    return room[..., : tensor.shape[-1]]
