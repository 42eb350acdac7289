# SPDX-License-Identifier: Apache-2.0
"""Layouts of a call's tensors in memory, with unchanged values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]
FILL = 77  # between the elements, where a kernel must not read
INDEX = 0  # between integers: used as an index, it gives a wrong result without a crash


def _strided(tensor: Tensor) -> Tensor:
    """Every second element of the last dimension."""
    if not tensor.dim():
        return _offset(tensor)
    room = _room([*tensor.shape[:-1], 2 * tensor.shape[-1]], tensor)
    return room[..., ::2].copy_(tensor)


def _transposed(tensor: Tensor) -> Tensor:
    """The first dimension is contiguous."""
    order = list(reversed(range(tensor.dim())))
    return _room([tensor.shape[i] for i in order], tensor).permute(order).copy_(tensor)


def _offset(tensor: Tensor) -> Tensor:
    """The tensor starts in the middle of its storage, at an odd address."""
    room = _room([tensor.numel() + 6], tensor)
    return room[3 : 3 + tensor.numel()].view(tensor.shape).copy_(tensor)


def _expanded(tensor: Tensor) -> Tensor:
    """The first dimension repeats one slice: its stride is 0."""
    if not tensor.dim() or tensor.shape[0] < 2:
        return tensor
    return tensor[:1].clone().expand(tensor.shape)


def _channels_last(tensor: Tensor) -> Tensor:
    """NHWC, and NDHWC."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.dim()])


def _room(shape: list[int], like: Tensor) -> Tensor:
    whole = not (like.is_floating_point() or like.is_complex() or like.dtype == torch.bool)
    return torch.full(shape, INDEX if whole else FILL, dtype=torch.float64).to(like.dtype)


LAYOUTS: dict[str, Layout] = {
    "strided": _strided,
    "transposed": _transposed,
    "offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
}


def apply(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor in this layout; the tensor itself where the layout does not apply."""
    if tensor.layout != torch.strided or tensor.is_quantized or 0 in tensor.shape:
        return tensor
    made = LAYOUTS[name](tensor.detach())
    return made.requires_grad_(tensor.requires_grad)
