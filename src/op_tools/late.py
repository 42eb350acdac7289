"""Values of tensors on their way from a device: copied by its stream, and nobody waits for them.

The copy stands in the stream behind what made the values and before what writes them next.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from op_tools import kernels, snapshot, statistics, steps
from op_tools.archive import HASH_AT, HEAD
from op_tools.arena import Arena
from op_tools.snapshot import Unsupported

POLL = 0.0002  # seconds
TRUSTED = 1000  # tensors; or until the next step
SWEEP = 4096  # so many entries later, those of freed memory are forgotten
Place = tuple[int, int]
_HASH = struct.Struct("<Q")


def arrived(stream: torch.Stream) -> None:
    """Waits, in a thread of its own, for what was given to a stream; others go on meanwhile."""
    event = torch.Event(stream.device)
    event.record(stream)
    while not event.query():
        time.sleep(POLL)


def send(target: Tensor, flat: Tensor) -> torch.Stream:
    """Has the current stream copy values into page-locked memory; that stream."""
    check_captured(flat.device.type)
    target.view(flat.dtype).view(flat.shape).copy_(flat, non_blocking=True)
    return torch.accelerator.current_stream(flat.device)


class Record(NamedTuple):
    """Values on their way behind the head of their record."""

    arena: Arena
    at: int
    size: int
    width: int  # bytes of a value
    stream: torch.Stream | None  # None: they are there
    entry: Entry | None


def wait(records: list[Record]) -> None:
    """In a thread of its own: they have come."""
    streams = {(s.device, s.stream_id): s for r in records if (s := r.stream) is not None}
    for stream in streams.values():
        arrived(stream)


def settle(records: list[Record]) -> None:
    """In a thread of its own: they have come, and their hashes go into their records.

    With as little Python as can be: it has a lock that the program needs.
    """
    wait(records)
    helper = kernels.helper()
    for arena, at, size, width, _, entry in records:
        start = at + HEAD.size
        if helper is not None:
            hashed = helper.hash(arena.address + start, size)
        else:
            hashed = statistics.hash_of(arena.memory[start : start + size])
        _HASH.pack_into(arena.view, at + HASH_AT, hashed)
        if entry is not None:
            count = size // width
            taken = min(count, snapshot.SAMPLED)
            first = start + (count - taken) // 2 * width
            entry.few = bytes(arena.view[first : first + taken * width])


class Waiting:
    """The records whose values are on their way, and where they are in the file."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, Record]] = deque()

    @property
    def first(self) -> int:
        """Where the first of them is, if there is one."""
        return self._records[0][0] if self._records else sys.maxsize

    def add(self, at: int, record: Record) -> None:
        self._records.append((at, record))

    def settle(self, stop: int) -> None:
        """Waits for those before a place in the file."""
        due = [record for at, record in list(self._records) if at < stop]
        settle(due)
        for _ in due:
            self._records.popleft()

    def clear(self) -> None:
        """Forgets them. Memory that is still written must not be given back."""
        with contextlib.suppress(RuntimeError):  # the device has failed, and writes nothing
            wait([record for _, record in list(self._records)])
        self._records.clear()


def check_captured(kind: str) -> None:
    """Raises Unsupported while the kind of device captures a graph: nothing has values then."""
    if captures(kind)():
        raise Unsupported("a tensor of a graph that is being captured")


@cache
def captures(kind: str) -> Callable[[], bool]:
    """What tells whether a kind of device captures a graph in the current stream."""
    found: Callable[[], bool] | None = getattr(
        torch.get_device_module(kind), "is_current_stream_capturing", None
    )
    return found if found is not None else lambda: False


def is_capturing() -> bool:
    """Whether the accelerator records a graph: nothing may be asked of it meanwhile."""
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.get_device_module(found.type).is_initialized():
        return False
    return captures(found.type)()


class Entry:
    """Where the values of a piece of memory were sent."""

    __slots__ = ("few", "memory", "number", "place", "sent", "step", "version")

    def __init__(self, tensor: Tensor, place: Place, number: int) -> None:
        self.memory = StorageWeakRef(tensor.untyped_storage())
        self.version = tensor._version
        self.place = place
        self.number = self.sent = number
        self.step = steps.current()
        self.few: bytes | None = None  # some of its elements, once they have arrived


class Sent:
    """What was sent, for as long as its memory holds the same values; see snapshot.Unchanged.

    Autograd's count of writes is trusted for a while, that of so many tensors. Not every write
    counts, so that after that a few elements are looked at (which waits for the device), unless
    every kernel is seen (not `sampled`).
    """

    def __init__(self, sampled: bool, trusted: int) -> None:
        self._sampled, self._trusted = sampled, trusted
        self._entries: dict[Any, Entry] = {}
        self._written: dict[int, int] = {}  # memory, and the number when it was written last
        self._number = 0
        self._sweep_at = SWEEP
        self._lock = threading.Lock()

    def find(self, tensor: Tensor) -> tuple[Any, Place | None]:
        """The key of its place in memory, and where its values are; None: they are to be sent."""
        key = snapshot.key_of(tensor)
        entry = self._entries.get(key) if key is not None else None
        if entry is None or entry.version != tensor._version or entry.memory.expired():
            return key, None
        if self._written.get(key[0], 0) > entry.sent:
            return key, None
        self._number += 1
        if self._sampled and not self._is_fresh(entry):
            if entry.few is None or entry.few != snapshot.sample(tensor):
                return key, None
            entry.number, entry.step = self._number, steps.current()
        return key, entry.place

    def _is_fresh(self, entry: Entry) -> bool:
        return entry.step == steps.current() and self._number - entry.number < self._trusted

    def keep(self, key: Any, tensor: Tensor, place: Place) -> Entry | None:
        """What was sent just now; None: nothing counts what is written there."""
        if key is None:
            return None
        self._number += 1
        entry = Entry(tensor, place, self._number)
        with self._lock:
            self._entries[key] = entry
            if len(self._entries) > self._sweep_at:
                self._sweep()
        return entry if self._sampled and len(key) == snapshot.DENSE else None

    def _sweep(self) -> None:
        self._entries = {k: e for k, e in self._entries.items() if not e.memory.expired()}
        live = {key[0] for key in self._entries}
        self._written = {place: at for place, at in self._written.items() if place in live}
        self._sweep_at = len(self._entries) + SWEEP

    def forget_all(self) -> None:
        """Any memory may be written unseen."""
        with self._lock:
            self._entries = {}
            self._written = {}

    def trust_nobody(self) -> None:
        """No count of writes is believed from now on."""
        self._sampled, self._trusted = True, 0
        self.forget_all()

    def forget(self, tensor: Tensor) -> None:
        """A call has written it, and so every view of its memory."""
        if tensor.layout != torch.strided or tensor.is_nested:
            return
        with self._lock:
            self._number += 1
            self._written[tensor.untyped_storage()._cdata] = self._number
