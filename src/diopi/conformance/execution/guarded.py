# SPDX-License-Identifier: Apache-2.0
"""A result tensor between guard elements, which reveal a kernel's writes outside of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diopi.inference import Described

WALL = 64  # guard elements before and after
PATTERN = 0xA5


@dataclass(frozen=True)
class Guarded:
    """A tensor to be written, and the memory that contains it."""

    tensor: Tensor
    room: Tensor  # flat, of any type
    inside: Tensor  # mask of the bytes that belong to the tensor

    def outside(self) -> str:
        """Describe the number of bytes written outside of the tensor; "" for none."""
        if not self.room.numel():
            return ""
        wrong = ((self.room.cpu().view(torch.uint8) != PATTERN) & ~self.inside).nonzero().flatten()
        if not len(wrong):
            return ""
        first, last = _ends(self.inside)
        before, after = int((wrong < first).sum()), int((wrong > last).sum())
        between = len(wrong) - before - after
        parts = [
            (before, "before"),
            (after, "past the end of"),
            (between, "between the elements of"),
        ]
        return ", ".join(f"{count} bytes {where} its result" for count, where in parts if count)


def _ends(inside: Tensor) -> tuple[int, int]:
    places = inside.nonzero().flatten()
    if not len(places):
        return len(inside) // 2, len(inside) // 2
    return int(places[0]), int(places[-1])


def guarded_result(kind: Described, device: torch.device) -> Guarded:
    """Allocate memory for a result of a C function, with the expected strides."""
    extent = 1 + sum((n - 1) * step for n, step in zip(kind.shape, kind.stride, strict=True))
    count = 0 if 0 in kind.shape else extent
    width = kind.dtype.itemsize
    bytes_ = torch.full(((count + 2 * WALL) * width,), PATTERN, dtype=torch.uint8)
    flat = bytes_.view(kind.dtype).to(device)
    tensor = flat.as_strided(kind.shape, kind.stride, WALL)
    return Guarded(tensor, flat, _mask(len(bytes_), tensor, width))


def guarded(like: Tensor, kind: str, device: str) -> Guarded:
    """Allocate memory for a result: `out` dense, `out_strided` non-contiguous, `out_transposed`
    with
    the first dimension contiguous, `out_resized` without elements.
    """
    nothing = torch.empty(0, dtype=torch.uint8)
    if kind == "out_resized":
        empty = torch.empty(0, dtype=like.dtype, device=device)
        return Guarded(empty, nothing, nothing.bool())
    turned = kind == "out_transposed"
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
    inside = _view(torch.zeros(total, dtype=torch.uint8), like.dtype, shape, count, step, turned)
    tensor = _view(room, like.dtype, shape, count, step, turned)
    return Guarded(tensor, room, _mask(total, inside, width))


def _view(
    room: Tensor, dtype: torch.dtype, shape: list[int], count: int, step: int, turned: bool
) -> Tensor:
    flat = room.view(dtype)[WALL : WALL + count]
    whole = (
        flat.view(shape[::-1]).permute(tuple(range(len(shape))[::-1]))
        if turned
        else flat.view(shape)
    )
    return whole[..., ::step] if whole.dim() and step > 1 else whole


def _mask(total: int, view: Tensor, width: int) -> Tensor:
    marks = torch.zeros(total // width, dtype=torch.bool)
    marks.as_strided(view.size(), view.stride(), view.storage_offset()).fill_(True)
    return marks.repeat_interleave(width)
