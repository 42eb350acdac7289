"""Tensors that are reduced together, where the device's vendor gives a kernel for it.

The vendor's module (`Vendor.statistics`) has one function, `start(table, device)`, which reduces
pieces of the device's memory in its current stream and waits for nothing; a RuntimeError says that
it cannot. The table is an int64 tensor on the host with a row for each piece: its address, its
size in bytes, and the kind of its values (the table in statistics.py; 16 more: the hash alone). A
piece is at most a block of the hash. What `start` returns waits, and gives int64 on the host, a
row for each piece: the two sums of the hash (a last part of a word is filled up with zeros), min,
max, sum, sum of squares, how many are finite, how many are NaN. The third to the sixth are the bits
of float64, but min and max of integers are whole; without a finite value they mean nothing.

It may have `launcher(index)` besides, for the native part: the addresses of what launches a kernel
and of what tells whether a stream is being captured, as cuLaunchKernel and cuStreamIsCapturing, and
between them the kernel and its threads. The kernel is given the table and the results, both in the
host's page-locked memory, and writes the last number of a row after all others. A fifth may say
whether it reads values with gaps: 32 more in the kind, and from its ninth bit on the number of the
piece's first value. The address is then that of 18 numbers in the host's memory: the address of the
first of all values, how many dimensions there are, and size and stride of each, in values, the
innermost first.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deeplink import vendor
from op_tools.host import kind_of
from op_tools.statistics import NATIVE
from op_tools.statistics_device import Later, flat_of
from op_tools.statistics_numpy import BLOCK
from op_tools.vendor_kernels import Start, offered

log = logging.getLogger("op_tools")
PIECE = 8 * BLOCK  # bytes
HASH_ONLY = 16
FIELDS = 8
HELD, WAITING = 1 << 28, 4096  # bytes and tensors that wait at most


@cache
def starter(kind: str) -> Start | None:
    """What the vendor of a kind of device gives; None: nothing."""
    return offered(kind, "statistics", _try)


Launcher = tuple[int, int, int, int] | tuple[int, int, int, int, bool]


@cache
def launcher(kind: str, index: int) -> Launcher | None:
    """What starts the same kernel without Python; None: nothing does."""
    if starter(kind) is None:
        return None
    module = importlib.import_module(vendor.module_for(kind, "statistics"))
    if not hasattr(module, "launcher"):
        return None
    found: Launcher = module.launcher(index)
    return found


def _try(start: Start, one: Tensor) -> None:
    """Raises what it raises, such as that it has no compiler."""
    table = torch.tensor(pieces(one, False), dtype=torch.int64)
    if start(table, one.device)().shape != (1, FIELDS):
        raise RuntimeError("its results are of another shape")


_Place = tuple[int, torch.dtype, int, int]  # address, type, count of values, count of writes
_stream: Callable[[int], torch.Stream] = torch._C._accelerator_getStream


class _Waiting(NamedTuple):
    later: Later
    flat: Tensor
    kind: str  # of device
    base: int  # the address of its memory
    version: int


class Together:
    """Tensors that are to be reduced, held until then; any thread."""

    def __init__(self, hash_only: bool, counted: bool = False) -> None:
        self._hash_only = hash_only
        self._counted = counted  # autograd's count of writes is up to date whenever one is added
        self._refused: set[str] = set()  # kinds of devices that cannot
        self._takes: dict[tuple[torch.device, torch.dtype], bool] = {}
        self._kinds: dict[torch.device, str] = {}
        self._waiting: list[_Waiting] = []
        self._places: dict[_Place, Later] = {}  # of those that lie in memory as they are
        self._storages: set[int] = set()  # of those
        self._bytes = 0
        self._stream: torch.Stream | None = None  # of all that waits
        self._lock = threading.RLock()

    def takes(self, tensor: Tensor) -> bool:
        """Whether its device reduces a tensor in this way. Hot path."""
        known = self._takes.get((tensor.device, tensor.dtype))
        if known is None:
            kind = kind_of(tensor)
            fits = tensor.dtype in NATIVE or tensor.is_complex()
            known = fits and kind not in self._refused and starter(kind) is not None
            self._takes[tensor.device, tensor.dtype] = known
            self._kinds[tensor.device] = kind
        return known

    def add(self, tensor: Tensor) -> Later:
        """A tensor to be started on, before it is written."""
        version = tensor._version if self._counted else 0
        place = self._place(tensor, version)
        known = self._places.get(place) if place is not None else None
        if known is not None:
            return known
        flat, times = flat_of(tensor) if place is None else (tensor.detach(), 1)
        made = Later(flat, times, self._hash_only)
        stream = _stream(flat.device.index)
        storage = flat.untyped_storage()
        with self._lock:
            if stream != self._stream:
                self.start()
            self._stream = stream
            if place is not None:
                self._places[place] = made
            at = storage.data_ptr()
            self._waiting.append(
                _Waiting(made, flat, self._kinds[tensor.device], at, flat._version)
            )
            self._storages.add(storage._cdata)
            self._bytes += storage.nbytes()
            if self._bytes > HELD or len(self._waiting) > WAITING:
                self.start()
        return made

    def _place(self, tensor: Tensor, version: int) -> _Place | None:
        """Where its values lie; None: not as they are, or nothing tells whether they were written
        since another of the same place was added.
        """
        if not self._counted or tensor.is_inference() or not tensor.is_contiguous():
            return None
        if tensor.is_complex() or tensor.is_neg():
            return None
        return tensor.data_ptr(), tensor.dtype, tensor.numel(), version

    def before_write(self, tensors: list[Tensor]) -> None:
        """Starts, where one of them waits: they are about to be written."""
        if not self._storages or not any(map(self._holds, tensors)):
            return
        with self._lock:
            stream = self._stream
            self.start()
        now = torch.accelerator.current_stream(tensors[0].device.index)
        if stream is not None and now != stream:
            now.wait_stream(stream)

    def _holds(self, tensor: Tensor) -> bool:
        plain = tensor.layout == torch.strided and not tensor.is_nested
        return plain and tensor.untyped_storage()._cdata in self._storages

    def start(self, all_over: bool = False) -> None:
        """Starts on all of them; `all_over`: after it none is being started by another thread."""
        if not self._waiting and not all_over:
            return
        with self._lock:
            waiting, self._waiting, self._storages, self._bytes = self._waiting, [], set(), 0
            self._places = {}
            if not waiting or self._stream is None:
                return
            kind, device = waiting[0].kind, waiting[0].flat.device
            some = [(one.later, one.flat) for one in waiting if not self._gone(one)]
            now = torch.accelerator.current_stream(device.index)
            try:
                with self._stream if now != self._stream else nullcontext():
                    self._start(kind, device, some)
            except Exception as error:  # another's code: torch's kernels do as well
                log.warning("op_tools goes without the kernel of %s: %s", kind, error)
                self._refused.add(kind)
                self._takes.clear()
                for one, flat in some:
                    one.reduce(flat.reshape(-1))

    def _gone(self, one: _Waiting) -> bool:
        """Whether its memory was given back meanwhile, by a resize, or written unseen."""
        if one.flat.untyped_storage().data_ptr() != one.base:
            one.later.text = '"skipped":"its memory was given back"'
        elif self._counted and one.flat._version != one.version:
            one.later.text = '"skipped":"it was written before it was read"'
        return bool(one.later.text)

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
        self._rows = np.empty((0, FIELDS), np.int64)

    def rows(self) -> NDArray[np.int64]:
        """The results; the first time waits for the device."""
        if self._read is not None:
            self._rows, self._read = self._read().numpy(), None
        return self._rows


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
