"""Memory on the host that copies are made into, used again and again."""

from __future__ import annotations

from collections import defaultdict, deque

import torch
from torch import Tensor


def host_memory(size: int, device: torch.device) -> Tensor:
    """Bytes on the host; page-locked for a device that copies into such memory much faster."""
    if device.type == "cuda" and size:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # "cuda" by another name, or none of it left
            pass
    return torch.empty(size, dtype=torch.uint8)


class Pool:
    """Fresh pages cost more than the copy into them; what came back last is still in the cache."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], deque[Tensor]] = defaultdict(deque)

    def copy(self, flat: Tensor) -> Tensor:
        """The values of a tensor; they go back to the pool with `give`."""
        size = flat.numel()
        try:
            memory = self._free[size, flat.dtype].pop()  # atomic: threads share it
        except IndexError:
            memory = host_memory(size * flat.element_size(), flat.device).view(flat.dtype)
        return memory.view(flat.shape).copy_(flat)

    def give(self, values: Tensor) -> None:
        """Takes back what nobody looks at any more."""
        size = values.numel()
        self._free[size, values.dtype].append(values.as_strided((size,), (1,)))

    def clear(self) -> None:
        self._free.clear()
