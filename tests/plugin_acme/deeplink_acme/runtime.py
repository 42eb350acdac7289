"""ACME's chip in pure Python: all that torch_dipu asks of a chip, and nothing more.

The host cannot reach the chip's memory (there is no memory_window): torch_dipu copies what an
operator reads and writes. The chip is done with its work when it returns from a call; one that
queues would keep, per stream, what is still to do.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import time
from threading import Lock

from torch_dipu.runtime import HOST, Copy, DeviceInfo

NAME = "ACME chip (made up)"
CAPACITY = 256 << 20
FIRST_ADDRESS = 0x7_0000_0000_0000  # no host address is as high, so the two are never mixed up
PAGE = 4096


class Chip:
    """The methods of torch_dipu.runtime.Runtime, for one device. Calls come from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._segments: dict[int, ctypes.Array[ctypes.c_char]] = {}  # by device address, ascending
        self._pinned: dict[int, ctypes.Array[ctypes.c_char]] = {}  # by host address
        self._used = 0
        self._next_address = FIRST_ADDRESS
        self._handles = itertools.count(1)  # of streams and events; 0 is the default stream
        self._recorded: dict[int, float] = {}  # event -> when, in seconds

    # devices

    def device_count(self) -> int:
        return 1

    def device_info(self, device: int) -> DeviceInfo:
        return DeviceInfo(NAME, CAPACITY, major=1, minor=0, multiprocessors=1)

    def device_synchronize(self, device: int) -> None:
        pass

    # memory: torch_dipu asks for large segments and divides them itself

    def memory_allocate(self, device: int, nbytes: int) -> int:
        with self._lock:
            if self._used + nbytes > CAPACITY:
                raise MemoryError(f"{nbytes} bytes asked for, {CAPACITY - self._used} free")
            address = self._next_address
            self._segments[address] = (ctypes.c_char * nbytes)()
            self._used += nbytes
            self._next_address += (nbytes // PAGE + 2) * PAGE  # a page between two segments
            return address

    def memory_free(self, device: int, address: int) -> None:
        with self._lock:
            self._used -= len(self._segments.pop(address))

    def memory_info(self, device: int) -> tuple[int, int]:
        return CAPACITY - self._used, CAPACITY

    def memory_copy(self, copy: Copy) -> None:
        target = self._reach(copy.dst, copy.dst_device, copy.nbytes)
        source = self._reach(copy.src, copy.src_device, copy.nbytes)
        ctypes.memmove(target, source, copy.nbytes)

    def host_allocate(self, nbytes: int) -> int:
        memory = (ctypes.c_char * nbytes)()
        self._pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def host_free(self, address: int) -> None:
        del self._pinned[address]

    # streams

    def stream_create(self, device: int, priority: int) -> int:
        return next(self._handles)

    def stream_synchronize(self, device: int, stream: int) -> None:
        pass

    def stream_query(self, device: int, stream: int) -> bool:
        return True

    def stream_wait_event(self, device: int, stream: int, event: int) -> None:
        pass

    # events

    def event_create(self, device: int, timing: bool) -> int:
        return next(self._handles)

    def event_destroy(self, device: int, event: int) -> None:
        self._recorded.pop(event, None)

    def event_record(self, device: int, event: int, stream: int) -> None:
        self._recorded[event] = time.monotonic()

    def event_query(self, event: int) -> bool:
        return True

    def event_synchronize(self, event: int) -> None:
        pass

    def event_elapsed(self, start: int, end: int) -> float:
        return (self._recorded[end] - self._recorded[start]) * 1e3

    def _reach(self, address: int, device: int, nbytes: int) -> int:
        """Where the bytes really are: what a DMA engine knows and a host program does not."""
        if device == HOST:
            return address
        with self._lock:
            starts = list(self._segments)
            index = bisect.bisect_right(starts, address) - 1
            offset = address - starts[index] if index >= 0 else 0
            if index < 0 or offset + nbytes > len(self._segments[starts[index]]):
                raise ValueError(f"{nbytes} bytes at {address:#x} are not memory of the ACME chip")
            return ctypes.addressof(self._segments[starts[index]]) + offset


def runtime() -> Chip:
    """What torch_dipu asks this module for, once."""
    return Chip()
