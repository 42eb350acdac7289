"""Memory on the host that copies are made into, in large pieces that are used again and again."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

PIECE = 16 << 20  # bytes; a larger tensor has a piece of its own
ALIGN = 64


def host_memory(size: int, device: torch.device) -> Tensor:
    """Bytes on the host; page-locked for a device that copies into such memory much faster."""
    if device.type == "cuda" and size:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # "cuda" by another name, or none of it left
            pass
    return torch.empty(size, dtype=torch.uint8)


class _Piece:
    """Memory of which a part is given out, from its beginning on; used again when all is back."""

    __slots__ = ("kind", "lent", "memory", "typed", "used")

    def __init__(self, memory: Tensor, kind: str) -> None:
        self.memory = memory
        self.kind = kind
        self.typed: dict[torch.dtype, Tensor] = {}  # the same memory
        self.used = 0
        self.lent = 0

    def part(self, start: int, like: Tensor) -> Tensor:
        typed = self.typed.get(like.dtype)
        if typed is None:
            typed = self.typed[like.dtype] = self.memory.view(like.dtype)
        at = start // like.element_size()
        if like.is_contiguous():
            return typed.as_strided(like.shape, like.stride(), at)
        return typed[at : at + like.numel()].view(like.shape)


class Pool:
    """Fresh pages cost more than the copy into them, so few are made. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[str, _Piece] = {}  # by type of device
        self._free: dict[str, list[_Piece]] = {}
        self._lent: dict[int, _Piece] = {}  # by address

    def copy(self, flat: Tensor) -> Tensor:
        """The values of a tensor; they go back to the pool with `give`."""
        size = flat.numel() * flat.element_size()
        if not size:
            return flat.cpu()
        with self._lock:
            piece, start = self._take(-(-size // ALIGN) * ALIGN, flat.device)
        return piece.part(start, flat).copy_(flat)

    def _take(self, size: int, device: torch.device) -> tuple[_Piece, int]:
        kind = device.type
        piece = self._current.get(kind)
        if piece is None or piece.used + size > piece.memory.numel():
            piece = self._next(size, device)
            self._lent[piece.memory.data_ptr()] = piece
            if size <= PIECE // 2:  # else what is left of the last one is not wasted
                self._current[kind] = piece
        start = piece.used
        piece.used += size
        piece.lent += 1
        return piece, start

    def _next(self, size: int, device: torch.device) -> _Piece:
        free = self._free.setdefault(device.type, [])
        for at, piece in enumerate(free):
            if size <= piece.memory.numel():
                return free.pop(at)
        return _Piece(host_memory(max(size, PIECE), device), device.type)

    def give(self, values: Tensor) -> None:
        """Takes back what nobody looks at any more."""
        if not values.numel():
            return
        with self._lock:
            piece = self._lent.get(values.untyped_storage().data_ptr())
            if piece is None:  # of another pool, or cleared
                return
            piece.lent -= 1
            if not piece.lent:
                piece.used = 0
                if self._current.get(piece.kind) is not piece:
                    self._free[piece.kind].append(piece)

    def clear(self) -> None:
        with self._lock:
            for pieces in (self._current, self._free, self._lent):
                pieces.clear()
