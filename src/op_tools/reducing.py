"""Tensors that are reduced together, where the device's vendor gives a kernel for it.

The vendor's module (`Vendor.statistics`) has one function, `start(table, device)`, which reduces
pieces of the device's memory in its current stream and waits for nothing; a RuntimeError says that
it cannot. The table is an int64 tensor on the host with a row for each piece: its address, its
size in bytes, and the kind of its values (the table in statistics.py; 16 more: the hash alone). A
piece is at most a block of the hash. What `start` returns waits, and gives int64 on the host, a
row for each piece: the two sums of the hash (a last part of a word is filled up with zeros), min,
max, sum, sum of squares, how many are finite, how many are NaN. The third to the sixth are the bits
of float64, but min and max of integers are whole; without a finite value they mean nothing.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from deeplink import vendor
from op_tools.host import kind_of
from op_tools.statistics import NATIVE
from op_tools.statistics_device import Later, flat_of
from op_tools.statistics_numpy import BLOCK

log = logging.getLogger("op_tools")
PIECE = 8 * BLOCK  # bytes
HASH_ONLY = 16
FIELDS = 8

Start = Callable[[Tensor, torch.device], Callable[[], Tensor]]


@cache
def starter(kind: str) -> Start | None:
    """What the vendor of a kind of device gives; None: nothing."""
    module = vendor.module_for(kind, "statistics")
    if not module:
        return None
    try:
        start: Start = importlib.import_module(module).start
        _try(start, torch.ones(1, device=kind))
    except Exception as error:  # another's module: torch's own kernels do as well
        log.warning("op_tools goes without %s: %s", module, error)
        return None
    return start


def _try(start: Start, one: Tensor) -> None:
    """Raises what it raises, such as that it has no compiler."""
    table = torch.tensor(pieces(one, False), dtype=torch.int64)
    if start(table, one.device)().shape != (1, FIELDS):
        raise RuntimeError("its results are of another shape")


class Together:
    """Tensors of a call, until they are started on; any thread."""

    def __init__(self, hash_only: bool) -> None:
        self._hash_only = hash_only
        self._refused: set[str] = set()  # kinds of devices that cannot
        self._waiting: list[tuple[Later, Tensor, str]] = []
        self._lock = threading.RLock()

    def takes(self, tensor: Tensor) -> bool:
        """Whether its device reduces a tensor in this way."""
        kind = kind_of(tensor)
        fits = tensor.dtype in NATIVE or tensor.is_complex()
        return fits and kind not in self._refused and starter(kind) is not None

    def add(self, tensor: Tensor) -> Later:
        """A tensor to be started on, before it is written."""
        flat, times = flat_of(tensor)
        made = Later(flat, times, self._hash_only)
        with self._lock:
            self._waiting.append((made, flat, kind_of(tensor)))
        return made

    def start(self) -> None:
        """Starts on all of them."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for kind, device in {(kind, flat.device) for _, flat, kind in waiting}:
                some = [pair[:2] for pair in waiting if pair[1].device == device]
                try:
                    self._start(kind, device, some)
                except Exception as error:  # another's code: torch's kernels do as well
                    log.warning("op_tools goes without the kernel of %s: %s", kind, error)
                    self._refused.add(kind)
                    for one, flat in some:
                        one.reduce(flat)

    def _start(self, kind: str, device: torch.device, some: list[tuple[Later, Tensor]]) -> None:
        start = starter(kind)
        assert start is not None  # `takes` has said so
        rows: list[tuple[int, int, int]] = []
        spans = []
        for _, flat in some:
            first = len(rows)
            rows += pieces(flat, self._hash_only)
            spans.append((first, len(rows)))
        group = Group(start(torch.tensor(rows, dtype=torch.int64), device) if rows else None)
        for (one, _), span in zip(some, spans, strict=True):
            one.group = group, *span


class Group:
    """What was started together."""

    def __init__(self, read: Callable[[], Tensor] | None) -> None:
        self._read = read
        self._rows: list[list[int]] = []

    def rows(self, first: int, last: int) -> list[list[int]]:
        """Some of the results; the first time waits for the device."""
        if self._read is not None:
            self._rows, self._read = self._read().tolist(), None
        return self._rows[first:last]


def pieces(flat: Tensor, hash_only: bool) -> list[tuple[int, int, int]]:
    """The rows of the table for values that lie one after the other."""
    kind = NATIVE[flat.dtype] + (HASH_ONLY if hash_only else 0)
    size, address = flat.numel() * flat.element_size(), flat.data_ptr()
    whole = size // 8 * 8
    starts = range(0, whole, PIECE)
    rows = [(address + start, min(PIECE, whole - start), kind) for start in starts]
    if size % 8:
        rows.append((address + whole, size % 8, kind))
    return rows
