"""Memory on the host that copies are made into, used again and again."""

from __future__ import annotations

import mmap
import threading
import time
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from op_tools import kernels, memory

BLOCK = 4096  # of a disk: memory and places in a file that go past the system's cache lie on one
SIZES = {False: 4 << 20, True: 16 << 20}  # of the host, of a device: to change it takes a while
LARGE = 64 << 20  # of a device, once so much was copied
NEAR = 64 << 20  # of one in a device's own memory
SHARE = 16  # of what a device has left: what waits there is no more of it
SPARE = 32 << 20  # bytes that are kept for the next one who needs some
SPARSE = 32  # pieces of memory that few bytes of were touched, kept in the same way
_spare: list[Arena] = []
_sparse: list[Tensor] = []
_lock = threading.Lock()


class Arena:
    """Bytes of a file that is being written, from `base` on; `filled` of them are there.

    Into that of a device (`locked`) it copies on its own, and nobody waits: into page-locked memory
    or, where it is asked for and the device has plenty, into memory of its own (`near`), which
    takes no memory of the host until it is fetched into the page-locked memory of another one
    (`landed`); what else is written lies together in `memory` then, and `rest` bytes at the end
    not even there. `settled` bytes are as they are to be written.
    """

    __slots__ = (
        *("address", "base", "device", "filled", "landed", "locked", "memory", "near", "rest"),
        *("settled", "size", "view"),
    )

    def __init__(self, size: int, device: str = "", near: bool = False) -> None:
        self.device = device
        with _disable_current_modes():  # while a program is traced, torch would make none
            self.near = near_memory(size, device) if near else None
            found = page_locked(size) if device and size and self.near is None else None
            self.locked = self.near is not None or found is not None
            if found is None and self.near is not None:
                found = _sparse_memory(size)
            if found is None:
                whole = torch.empty(size + BLOCK, dtype=torch.uint8)
                skipped = -whole.data_ptr() % BLOCK
                found = whole[skipped : skipped + size]
            self.memory = found
            self.address = self.memory.data_ptr()
            raw: Any = self.memory.numpy()  # typed as no buffer, which it is
        self.view = memoryview(raw)
        self.size = size
        self.landed: Arena | None = None
        self.start(0)

    def start(self, base: int) -> None:
        """Empty, and for what comes there in the file."""
        self.base = base
        self.filled = self.settled = self.rest = 0

    @property
    def end(self) -> int:
        """Where in the file it ends so far."""
        return self.base + self.filled


def page_locked(size: int) -> Tensor | None:
    """Bytes that a device copies into much faster, and on its own; None: there are none."""
    try:
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:  # no such memory here, or none of it left
        return None
    return memory if memory.data_ptr() % BLOCK == 0 else None


def _sparse_memory(size: int) -> Tensor:
    """Bytes of which few will be touched: each costs a page of its own, and no large one."""
    with _lock:
        if _sparse and len(_sparse[-1]) == size:
            return _sparse.pop()
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def near_memory(size: int, device: str) -> Tensor | None:
    """Bytes of a device's own; None: there are none left."""
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError:
        return None


def plenty(device: str) -> int:
    """Bytes that are a small share of what a device has left."""
    return left_on(device, int(time.monotonic())) // SHARE


@lru_cache(4)  # for a second: to ask takes long
def left_on(device: str, second: int) -> int:
    """Bytes that a device has left; 0 without the native part, which alone fetches from there."""
    if kernels.loaded() is None:
        return 0
    return memory.free_on(torch.device(device, torch.accelerator.current_device_index()))


def take(size: int, device: str = "") -> Arena:
    """One that was used before, if there is one: fresh pages cost more than the copy into them."""
    with _lock:
        found = one_for(size, device, _spare)
    return found or Arena(size, device)


def one_for(size: int, device: str, arenas: list[Arena]) -> Arena | None:
    """The last that has the size and serves a device ("": any does), taken out of the list."""
    for at in range(len(arenas) - 1, -1, -1):
        if arenas[at].size == size and (not device or arenas[at].device == device):
            return arenas.pop(at)
    return None


def give(arena: Arena) -> None:
    """Takes back what nobody looks at any more; a device's own memory is the program's again."""
    with _lock:
        if arena.near is not None:
            if arena.size == NEAR and len(_sparse) < SPARSE:
                _sparse.append(arena.memory)
        elif sum(each.size for each in _spare) + arena.size <= SPARE:
            arena.start(0)
            _spare.append(arena)
