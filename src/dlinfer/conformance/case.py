# SPDX-License-Identifier: Apache-2.0
"""A case: one op and its arguments, on the CPU; and the makers of them, by op."""

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
CASES: dict[str, Maker] = {}  # op -> what makes its cases: a few words, and the arguments
FILES = ("tokens", "paged", "products")


@dataclass(frozen=True)
class Case:
    """One call."""

    op: str
    label: str
    dtype: torch.dtype
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.op} {str(self.dtype).removeprefix('torch.')} {self.label}"


def makes(op: str) -> Callable[[Maker], Maker]:
    """Registers the maker of an op's cases."""

    def keep(maker: Maker) -> Maker:
        CASES[op] = maker
        return maker

    return keep


def cases(op: str, dtype: torch.dtype) -> Iterator[Case]:
    """The cases of an op in one type; the same at each call."""
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
    """Normal numbers."""
    return torch.randn(shape).to(dtype)


def apart(tensor: Tensor) -> Tensor:
    """The same values as a part of something larger, so that rows are not next to each other."""
    room = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), torch.nan).to(tensor.dtype)
    room[..., : tensor.shape[-1]] = tensor
    return room[..., : tensor.shape[-1]]
