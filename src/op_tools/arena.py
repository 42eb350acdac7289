"""Memory on the host that copies are made into, used again and again."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

BLOCK = 4096  # of a disk: memory and places in a file that go past the system's cache lie on one
SIZE = 4 << 20
SPARE = 8  # arenas that are kept for the next one who needs some
_spare: list[Arena] = []
_lock = threading.Lock()


def host_memory(size: int, device: torch.device) -> Tensor:
    """Bytes on the host; page-locked for a device that copies into such memory much faster."""
    if device.type == "cuda" and size:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # "cuda" by another name, or none of it left
            pass
    return torch.empty(size, dtype=torch.uint8)


class Arena:
    """Bytes of a file that is being written, from `base` on; `filled` of them are there."""

    __slots__ = ("address", "base", "filled", "memory", "size", "view")

    def __init__(self, size: int, device: torch.device) -> None:
        whole = host_memory(size + BLOCK, device)
        skipped = -whole.data_ptr() % BLOCK
        self.memory = whole[skipped : skipped + size]
        self.address = self.memory.data_ptr()
        raw: Any = self.memory.numpy()  # typed as no buffer, which it is
        self.view = memoryview(raw)
        self.size = size
        self.base = 0
        self.filled = 0


def take(size: int, device: torch.device) -> Arena:
    """One that was used before, if there is one: fresh pages cost more than the copy into them."""
    if size == SIZE:
        with _lock:
            if _spare:
                return _spare.pop()
    return Arena(size, device)


def give(arena: Arena) -> None:
    """Takes back what nobody looks at any more."""
    if arena.size == SIZE:
        with _lock:
            if len(_spare) < SPARE:
                arena.base = arena.filled = 0
                _spare.append(arena)
