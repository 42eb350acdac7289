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

import torch
from torch import Tensor

from deeplink import vendor
from op_tools.host import kind_of
from op_tools.statistics import NATIVE
from op_tools.statistics_device import Later, Reduced, flat_of
from op_tools.statistics_groups import (
    Group,
    Laid,
    Listed,
    ReducedList,
    Values,
    Waiting,
    WaitingList,
    flat_again,
    pieces,
    values_of,
)
from op_tools.statistics_rows import FIELDS
from op_tools.vendor_kernels import Start, offered

log = logging.getLogger("op_tools")
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


_stream: Callable[[int], torch.Stream] = torch._C._accelerator_getStream


Skipped = tuple[Later | str, str]  # and why
Started = Group | ReducedList | Reduced | Skipped


class Together:
    """Tensors that are to be reduced, held until then; any thread."""

    def __init__(self, hash_only: bool, counted: bool = False) -> None:
        self.hash_only = hash_only
        self._counted = counted  # autograd's count of writes is up to date whenever one is added
        self.refused: set[str] = set()  # kinds of devices that cannot
        self._takes: dict[tuple[torch.device, torch.dtype], bool] = {}
        self._waiting: list[Waiting] = []
        self._lists: list[WaitingList] = []
        self._storages: set[int] = set()  # of those
        self._bytes = 0
        self._device = torch.device("cpu")  # of all that waits
        self._stream: torch.Stream | None = None  # and of it
        self._started: list[Started] = []  # to be read
        self.starts = 0
        self.lock = threading.RLock()

    def takes(self, tensor: Tensor) -> bool:
        """Whether its device reduces a tensor in this way. Hot path."""
        known = self._takes.get((tensor.device, tensor.dtype))
        if known is None:
            kind = kind_of(tensor)
            fits = tensor.dtype in NATIVE or tensor.is_complex()
            known = fits and kind not in self.refused and starter(kind) is not None
            self._takes[tensor.device, tensor.dtype] = known
        return known

    def add(self, tensor: Tensor, dense: bool = False) -> Later:
        """A tensor to be started on, before it is written; dense: its values, plain ones, fill a
        piece of memory.
        """
        with self.lock:
            self.enter(tensor.device)
            flat, times = (tensor, 1) if dense else flat_of(tensor)
            storage, address = flat.untyped_storage(), flat.data_ptr()
            given = address, values_of(flat), times
            later = Later()
            if not self._counted or flat.is_inference():
                self.put_storage(later, storage, *given)
            else:
                self.make_room(storage.nbytes())
                self.put((later, flat.detach(), address, flat._version, *given))
            return later

    def enter(self, device: torch.device) -> None:
        """From now on, with the lock, tensors of the current stream of a device are put."""
        stream = _stream(device.index)
        if stream != self._stream:
            self.start()
        self._device, self._stream = device, stream

    def put(self, one: Waiting) -> None:
        """Values that lie one after the other. Hot path."""
        self._waiting.append(one)

    def add_storage(
        self,
        device: torch.device,
        storage: torch.UntypedStorage,
        address: int,
        values: Values,
    ) -> Later:
        """The same as `add` of dense values in a storage. Hot path."""
        with self.lock:
            self.enter(device)
            later = Later()
            self.put_storage(later, storage, address, values)
            return later

    def put_storage(
        self,
        later: Later,
        storage: torch.UntypedStorage,
        address: int,
        values: Values,
        times: int = 1,
    ) -> None:
        """The same of values in a storage: it is known who writes it, or nobody knows."""
        self.make_room(storage.nbytes())
        self._storages.add(storage._cdata)
        self.put((later, storage, storage.data_ptr(), -1, address, values, times))

    def put_list(
        self,
        tensors: list[Tensor],
        addresses: list[int],
        versions: list[int],
        laid: Laid,
        starts: list[str],
        memories: frozenset[int],
        size: int,
    ) -> Listed:
        """Dense tensors; they are held themselves."""
        self.make_room(size)
        self._storages |= memories
        listed = Listed(starts)
        self._lists.append(WaitingList(listed, list(tensors), addresses, versions, laid))
        return listed

    def make_room(self, size: int) -> None:
        """For one that holds so many bytes, before it is put: not more than so much waits."""
        if self._bytes > HELD or len(self._waiting) > WAITING:
            self.start()
        self._bytes += size

    def before_write(self, tensors: list[Tensor]) -> None:
        """Starts, where one of them waits: they are about to be written."""
        if self._storages and any(map(self._holds, tensors)):
            self._start_before(tensors[0].device)

    def before_write_memory(self, memories: frozenset[int], device: torch.device) -> None:
        """The same of their storages."""
        if not self._storages.isdisjoint(memories):
            self._start_before(device)

    def before_any_write(self) -> None:
        """Starts: any memory of their device is about to be written, in its current stream."""
        if self._waiting or self._lists:
            self._start_before(self._device)

    def _start_before(self, device: torch.device) -> None:
        with self.lock:
            stream = self._stream
            self.start()
        now = torch.accelerator.current_stream(device.index)
        if stream is not None and now != stream:
            now.wait_stream(stream)

    def _holds(self, tensor: Tensor) -> bool:
        plain = tensor.layout == torch.strided and not tensor.is_nested
        return plain and tensor.untyped_storage()._cdata in self._storages

    def start(self, all_over: bool = False) -> None:
        """Starts on all of them; `all_over`: after it none is being started by another thread."""
        if not (self._waiting or self._lists or all_over):
            return
        with self.lock:
            waiting, lists, self._waiting, self._lists = self._waiting, self._lists, [], []
            self._storages, self._bytes = set(), 0
            self.starts += 1
            stream = self._stream
            if not (waiting or lists) or stream is None:
                return
            now = torch.accelerator.current_stream(self._device.index)
            with stream if now != stream else nullcontext():
                self._start(self._device, self._there(waiting), self._lists_there(lists))

    def _lists_there(self, lists: list[WaitingList]) -> list[WaitingList]:
        """The same of lists: those in which one is not have none."""
        there = []
        for one in lists:
            gone = [tensor.data_ptr() for tensor in one.holders] != one.addresses
            late = [tensor._version for tensor in one.holders] != one.versions
            if gone or (late and self._counted):
                word = "its memory was given back" if gone else "it was written before it was read"
                one.listed.texts = [f'"skipped":"{word}"'] * len(one.holders)
                one.listed.fill()
                marks = one.listed.inside, one.listed.after
                self._started += [(mark, mark.text) for mark in marks]
            else:
                there.append(one)
        return there

    def taken(self) -> list[Started]:
        """What was started since the last time."""
        with self.lock:
            started, self._started = self._started, []
        return started

    def _there(self, waiting: list[Waiting]) -> list[Waiting]:
        """Those whose memory was not given back meanwhile, by a resize, or written unseen."""
        bases = [one[1].data_ptr() for one in waiting]
        counts = [-1 if one[3] < 0 else one[1]._version for one in waiting]  # type: ignore[union-attr]
        if bases == [one[2] for one in waiting] and counts == [one[3] for one in waiting]:
            return waiting
        there = []
        for at, one in enumerate(waiting):
            if bases[at] != one[2]:
                self._started.append((one[0], '"skipped":"its memory was given back"'))
            elif counts[at] != one[3]:
                self._started.append((one[0], '"skipped":"it was written before it was read"'))
            else:
                there.append(one)
        return there

    def _start(
        self, device: torch.device, waiting: list[Waiting], lists: list[WaitingList]
    ) -> None:
        kind = device.type
        if not (waiting or lists):
            return
        try:
            start = starter(kind)
            assert start is not None  # `takes` has said so
            self._started.append(Group(waiting, lists, self.hash_only, start, device))
        except Exception as error:  # another's code: torch's kernels do as well
            log.warning("op_tools goes without the kernel of %s: %s", kind, error)
            self.refused.add(kind)
            self._takes.clear()
            for one in waiting:
                flat, mark = flat_again(one, device), one[0]
                later = Later(mark) if isinstance(mark, str) else mark
                self._started.append(Reduced(flat, one[6], self.hash_only, True, later))
            self._started += [ReducedList(some, self.hash_only) for some in lists]
