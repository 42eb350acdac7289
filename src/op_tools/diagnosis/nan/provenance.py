# SPDX-License-Identifier: Apache-2.0
"""Records of kernels that refer to the records of the kernels that computed their arguments."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from op_tools.tools.overflow import Extent

KEPT = 50_000  # records: several steps of a large model
UPSTREAM = 6  # calls before the origin that are shown


@dataclass(slots=True)
class Record:
    """One call of a kernel. `largest` is the largest magnitude of its results: NaN if a result has
    one.
    """

    number: int
    op: str
    direction: str
    step: int
    module: str
    site: str
    makers: tuple[int, ...]  # the records of its arguments; 0: not observed
    largest: float = 0.0
    taken: tuple[float, ...] = ()  # the magnitudes of its arguments, if they were read
    meant: bool = False  # the Inf is intended: of a mask
    inputs: tuple[Extent, ...] = field(default=(), repr=False)
    outputs: tuple[Extent, ...] = field(default=(), repr=False)

    @property
    def bad(self) -> bool:
        return not math.isfinite(self.largest)

    @property
    def state(self) -> str:
        if math.isnan(self.largest):
            return "NaN"
        return ("Inf of a mask" if self.meant else "Inf") if self.bad else "finite"

    def as_dict(self) -> dict[str, Any]:
        """The record for JSON, with nan and inf as texts."""
        return {
            "op": self.op,
            "direction": self.direction,
            "step": self.step,
            "module": self.module,
            "site": self.site,
            "largest": f"{self.largest:.4g}",
            "state": self.state,
        }


class Records:
    """The last records, and the record that wrote each storage last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Record] = OrderedDict()
        self._writers: dict[int, int] = {}  # by the address of a storage
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def add(self, record: Record, written: Sequence[Tensor]) -> None:
        """Add a record, and the storages that its call wrote."""
        self._kept[record.number] = record
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        for tensor in written:
            self._writers[address(tensor)] = record.number

    def maker(self, tensor: Tensor) -> int:
        """The record that wrote a tensor; 0: none."""
        return self._writers.get(address(tensor), 0)

    def get(self, number: int) -> Record | None:
        return self._kept.get(number)

    def path(self, record: Record) -> list[Record]:
        """The path from a bad result to its origin, each call before those that use its result."""
        found = [record]
        seen = {record.number}
        while True:
            before = self._bad_maker(found[-1], seen)
            if before is None:
                return found
            seen.add(before.number)
            found.append(before)

    def _bad_maker(self, record: Record, seen: set[int]) -> Record | None:
        """The argument with the bad value of a result; an Inf of a mask does not count."""
        makers = [r for r in map(self.get, record.makers) if r is not None]
        bad = [r for r in makers if r.bad and not r.meant and r.number not in seen]
        if record.taken:  # the bad arguments at the time of the call are known
            wrong = {
                maker
                for maker, size in zip(record.makers, record.taken, strict=False)
                if not math.isfinite(size)
            }
            bad = [r for r in bad if r.number in wrong]
        nans = [r for r in bad if math.isnan(r.largest)]
        chosen = nans if nans and math.isnan(record.largest) else bad
        return max(chosen, key=lambda r: r.number, default=None)

    def before(self, record: Record) -> list[Record]:
        """The calls before the origin, along the largest argument of each call."""
        found: list[Record] = []
        at: Record | None = record
        while at is not None and len(found) < UPSTREAM:
            makers = [r for r in map(self.get, at.makers) if r is not None and r is not at]
            makers = [r for r in makers if r.step == record.step]
            at = max(makers, key=lambda r: (_size(r.largest), r.number), default=None)
            if at is None or at in found:
                break
            found.append(at)
        return found


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)


def address(tensor: Tensor) -> int:
    """The address of the storage of a tensor, which views share."""
    return tensor.untyped_storage().data_ptr()


def strided(tensors: Iterator[Tensor] | Sequence[Tensor]) -> list[Tensor]:
    """The tensors with strided memory."""
    return [t for t in tensors if t.layout == torch.strided and not t.is_nested and t.numel()]
