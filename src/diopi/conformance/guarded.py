"""A tensor with a wall around it: what a kernel writes outside of its result is seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WALL = 64  # elements before and after
PATTERN = 0xA5


@dataclass(frozen=True)
class Guarded:
    """A tensor to be written, and the memory that it is a part of."""

    tensor: Tensor
    room: Tensor  # bytes, flat
    inside: Tensor  # which of them belong to the tensor

    def broken(self) -> bool:
        """Whether a byte outside of the tensor was written."""
        if not self.room.numel():
            return False
        now = self.room.cpu()
        return bool((now[~self.inside] != PATTERN).any())


def guarded(like: Tensor, kind: str, device: str) -> Guarded:
    """Room for a result: `out` dense, `out_strided` with gaps, `out_resized` with no element."""
    nothing = torch.empty(0, dtype=torch.uint8)
    if kind == "out_resized":
        empty = torch.empty(0, dtype=like.dtype, device=device)
        return Guarded(empty, nothing, nothing.bool())
    step = 2 if kind == "out_strided" and like.dim() else 1
    shape = list(like.shape)
    if step == 2:
        shape[-1] *= 2
    count = 1
    for size in shape:
        count *= size
    width = like.dtype.itemsize
    total = (count + 2 * WALL) * width
    room = torch.full((total,), PATTERN, dtype=torch.uint8, device=device)
    inside = _view(torch.zeros(total, dtype=torch.uint8), like.dtype, shape, count, step)
    return Guarded(_view(room, like.dtype, shape, count, step), room, _mask(total, inside, width))


def _view(room: Tensor, dtype: torch.dtype, shape: list[int], count: int, step: int) -> Tensor:
    whole = room.view(dtype)[WALL : WALL + count].view(shape)
    return whole[..., ::step] if whole.dim() and step > 1 else whole


def _mask(total: int, view: Tensor, width: int) -> Tensor:
    marks = torch.zeros(total // width, dtype=torch.bool)
    marks.as_strided(view.size(), view.stride(), view.storage_offset()).fill_(True)
    return marks.repeat_interleave(width)
