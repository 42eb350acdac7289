"""A result beside its reference on a device, and the figures by which it is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RELATIVE, BEYOND = 3, 4  # places among the figures


@dataclass(slots=True, eq=False)  # hot path
class Near:
    """A result, a reference in float64, and the type whose spacing counts."""

    mine: Tensor
    theirs: Tensor
    unit: torch.dtype


@dataclass(slots=True)
class Figures:
    """Of one pair: maxima and sums of squares over its elements."""

    steps: float = 0.0  # the largest error in steps of the type
    largest: float = 0.0
    gap: float = 0.0  # against the reference in the result's own type
    relative: float = 0.0
    beyond: float = 0.0  # how much larger the gap is somewhere than a step of float32
    steps_squared: float = 0.0
    squared: float = 0.0
    size: float = 0.0  # of the reference
    mine: float = 0.0
    off: float = 0.0  # elements that are not rounded correctly

    def add(self, row: Sequence[float]) -> None:
        """A piece of the pair: its maxima and its sums, in the order of the fields."""
        steps, largest, gap, relative, beyond, steps_squared, squared, size, mine, off = row
        self.steps = _greater(self.steps, steps)
        self.largest = _greater(self.largest, largest)
        self.gap = _greater(self.gap, gap)
        self.relative = _greater(self.relative, relative)
        self.beyond = _greater(self.beyond, beyond)
        self.steps_squared += steps_squared
        self.squared += squared
        self.size += size
        self.mine += mine
        self.off += off

    @property
    def cosine(self) -> float:
        lengths = math.sqrt(self.mine) * math.sqrt(self.size)
        if self.gap == 0.0:
            return 1.0
        if lengths == 0.0 or not math.isfinite(lengths):
            return math.nan
        product = (self.mine + self.size - self.squared) / 2
        return min(1.0, max(-1.0, product / lengths))


class Measured:
    """The figures of many pairs, a row for each; objects are made of those that are asked for."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Figures]:
        return (Figures(*row) for row in self._rows.tolist())

    def part(self, begin: int, end: int) -> Measured:
        """Those of some pairs."""
        return Measured(self._rows[begin:end])

    def of(self, at: int) -> Figures:
        """Those of one pair."""
        return Figures(*self._rows[at].tolist())

    def worst_within(self) -> int | None:
        """Where no gap is larger than a step of float32, the place of the largest one."""
        if not len(self._rows) or not (self._rows[:, BEYOND] <= 0.0).all():  # a nan is not
            return None
        return int(self._rows[:, RELATIVE].argmax())


def _greater(a: float, b: float) -> float:
    return b if not b <= a else a  # a nan stays
