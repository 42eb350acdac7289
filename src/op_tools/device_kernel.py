"""Results and references that are measured by a kernel of the vendor's, where it gives one.

The vendor's module (`Vendor.differences`) has one function, `start(table, device)`, which measures
pieces of the device's memory in its current stream and waits for nothing; a RuntimeError says that
it cannot. The table is an int64 tensor on the host with a row for each piece: the addresses of the
result and of its reference in float64, how many elements, the kind of the result's values (the
table in statistics.py), and, as bits of float64, a step of the type that counts as a part of a
power of two, the least step, and the part of a step beyond which a value is not rounded correctly.
What `start` returns waits, and gives the bits of float64 on the host, a row for each piece: the
fields of `Figures`.
"""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from deeplink.judge.calibrated import HALF
from deeplink.judge.formats import FORMATS
from op_tools import kernels
from op_tools.device_pairs import Measured, Near
from op_tools.statistics import NATIVE
from op_tools.vendor_kernels import Start, offered

PIECE = 1 << 16  # elements
GIVEN, MAXIMA, FOUND = 7, 5, 10
KINDS = {dtype: NATIVE[dtype] for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def reads(result: Tensor) -> bool:
    """Whether there is a kernel for results like this one."""
    return result.dtype in KINDS and starter(result.device.type) is not None


def started(pairs: Table, device: torch.device) -> Callable[[], Measured] | None:
    """Starts on all pairs; what it returns waits for their figures. None: it cannot, now."""
    start = starter(device.type)
    if start is None or device.index != torch.accelerator.current_device_index():
        return None
    try:
        return pairs.started(start, device)
    except RuntimeError:
        return None


def measured(table: Tensor, device: torch.device) -> Tensor | None:
    """The figures of each row of a table, as float64; None: it cannot, now."""
    start = starter(device.type)
    if start is None or device.index != torch.accelerator.current_device_index():
        return None
    if not len(table):
        return torch.empty(0, FOUND, dtype=torch.float64)
    try:
        return start(table, device)().view(torch.float64)
    except RuntimeError:
        return None


def row_of(dtype: torch.dtype) -> tuple[int, int, int, int]:
    """What a row of the table says of results of this type, whose own steps count."""
    return KINDS[dtype], *_steps(dtype)


@cache
def starter(kind: str) -> Start | None:
    """What the vendor of a kind of device gives; None: nothing."""
    return offered(kind, "differences", _try)


def _try(start: Start, one: Tensor) -> None:
    """Raises what it raises, such as that it has no compiler."""
    table = Table()
    table.add(Near(one, one.double() + 1, torch.float32))
    if next(iter(table.started(start, one.device)())).gap != 1.0:
        raise RuntimeError("its results are others")


class Table:
    """Pairs that are measured by one launch."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._more: list[Tensor] = []
        self._pieces: list[int] = []  # of each pair
        self._held: list[Tensor] = []

    def add(self, pair: Near) -> None:
        """One pair, of any strides."""
        mine, theirs, kind = pair.mine, pair.theirs, KINDS[pair.mine.dtype]
        mine = mine if mine.is_contiguous() else mine.contiguous()
        theirs = theirs if theirs.is_contiguous() else theirs.contiguous()
        self._held += (mine, theirs)
        first, second, whole = mine.data_ptr(), theirs.data_ptr(), mine.numel()
        count, steps, size = 0, _steps(pair.unit), mine.itemsize
        if 0 < whole <= PIECE:  # hot path
            self._rows.extend((first, second, whole, kind, *steps))
            self._pieces.append(1)
            return
        for begin, length in _cut(whole):
            given = first + size * begin, second + 8 * begin, length, kind, *steps
            self._rows.extend(given)
            count += 1
        self._pieces.append(count)

    def add_all(self, pairs: Sequence[Near]) -> None:
        """Many pairs. Hot path: natively."""
        helper = kernels.loaded()
        if helper is None or self._pieces:
            for pair in pairs:
                self.add(pair)
            return
        kinds: dict[tuple[int, ...], int] = {}
        whose = [(KINDS[pair.mine.dtype], *_steps(pair.unit)) for pair in pairs]
        which = [kinds.setdefault(kind, len(kinds)) for kind in whose]
        sides = [pair.mine for pair in pairs], [pair.theirs for pair in pairs]
        rows, self._pieces, copies = helper.rows_of_pairs(*sides, which, list(kinds), PIECE)
        self._more += [rows] if len(rows) else []
        self._held += [*sides[0], *sides[1], *copies]

    def add_flat(self, mine: Tensor, theirs: Tensor, flat: FlatRows) -> None:
        """Pairs that lie one after the other in two pieces of memory; not with any other."""
        self._held += (mine, theirs)
        self._more.append(flat.at(mine.data_ptr(), theirs.data_ptr()))
        self._pieces += flat.pieces

    def started(self, start: Start, device: torch.device) -> Callable[[], Measured]:
        """Starts on all; what it returns waits for them."""
        parts = list(self._more)
        if self._rows:
            parts.insert(0, torch.frombuffer(self._rows, dtype=torch.int64).view(-1, GIVEN))
        if not parts:
            return lambda: Measured(np.zeros((len(self._pieces), FOUND)))
        read = start(parts[0] if len(parts) == 1 else torch.cat(parts), device)
        return lambda: _figures(read().view(torch.float64), self._pieces)


class FlatRows:
    """The rows of tensors that lie one after the other, relative to where they begin."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype, unit: torch.dtype) -> None:
        width, kind, steps = dtype.itemsize, KINDS[dtype], _steps(unit)
        ends = itertools.accumulate(sizes, initial=0)
        cuts = [[(at + b, n) for b, n in _cut(size)] for at, size in zip(ends, sizes, strict=False)]
        self.pieces = [len(cut) for cut in cuts]
        rows = [(width * b, 8 * b, n, kind, *steps) for cut in cuts for b, n in cut]
        self._rows = torch.tensor(rows, dtype=torch.int64).view(-1, GIVEN)

    def at(self, mine: int, theirs: int) -> Tensor:
        rows = self._rows.clone()
        rows[:, 0] += mine
        rows[:, 1] += theirs
        return rows


def _cut(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, PIECE):
        yield begin, min(PIECE, count - begin)


@cache
def _steps(unit: torch.dtype) -> tuple[int, int, int]:
    form = FORMATS[unit]
    relative = 2.0 ** (1 - form.digits)
    numbers = relative, 2.0**form.least * relative, HALF if form.is_half else math.inf
    return struct.unpack("3q", struct.pack("3d", *numbers))


def _figures(rows: Tensor, pieces: Sequence[int]) -> Measured:
    """Those of each pair, from those of its pieces."""
    lengths = torch.tensor(pieces)
    maxima = torch.segment_reduce(rows[:, :MAXIMA].contiguous(), "max", lengths=lengths)
    sums = torch.segment_reduce(rows[:, MAXIMA:].contiguous(), "sum", lengths=lengths)
    made = torch.cat((maxima, sums), 1)
    if 0 in pieces:  # of nothing, the largest is none
        made[lengths == 0] = 0.0
    return Measured(made.numpy())
