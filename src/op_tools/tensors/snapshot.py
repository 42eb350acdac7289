# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tensors: type, layout, device and a dense copy of the values on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

SAMPLED = 32  # elements that are compared to detect a write


class Unsupported(Exception):
    """A tensor that cannot be copied to a file; the text is the reason."""


@dataclass(slots=True, eq=False)  # hot path: one for each tensor of each call
class Snapshot:
    """The description of a tensor, and its values: dense, in the order of its memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool
    data_ptr: int
    values: Tensor | None = field(default=None, repr=False)  # None: they are in an archive
    place: tuple[int, int] = (0, 0)  # of the values in an archive: where, and how many bytes

    def tensor(self) -> Tensor:
        """Rebuild the tensor on the CPU, with its strides."""
        assert self.values is not None
        return rebuild(self.values, self.shape, self.stride)


def check(tensor: Tensor) -> None:
    """Raise Unsupported for a quantized tensor and for one that is not strided."""
    if tensor.is_quantized:
        raise Unsupported("a quantized tensor")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise Unsupported(f"a tensor of layout {tensor.layout}")


def describe(tensor: Tensor, values: Tensor | None = None) -> Snapshot:
    """Make the snapshot of a tensor whose values were copied."""
    return Snapshot(
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        device_name(tensor.device),
        tensor.requires_grad,
        tensor.data_ptr() if tensor.numel() else 0,
        values,
    )


def once(take: Callable[[Tensor], Snapshot]) -> Callable[[Tensor], Snapshot]:
    """Wrap `take` so that it reads a tensor only once, however often the tensor occurs."""
    snapshots: dict[int, tuple[Tensor, Snapshot]] = {}  # holds the tensors: ids are reused

    def snapshot(tensor: Tensor) -> Snapshot:
        if id(tensor) not in snapshots:
            snapshots[id(tensor)] = tensor, take(tensor)
        return snapshots[id(tensor)][1]

    return snapshot


device_name = cache(str)  # "dipu:0" of a device


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type: "float32"."""
    return str(dtype).removeprefix("torch.")


def values(tensor: Tensor) -> Tensor:
    """Copy the values of a tensor to the host: dense, in the order of its memory.

    A dimension that repeats its values (stride 0, as `expand` makes it) is kept once.
    """
    check(tensor)
    flat, _ = ordered(tensor)
    copied = flat.contiguous().cpu()
    return copied.clone() if copied.data_ptr() == tensor.data_ptr() else copied


def ordered(tensor: Tensor) -> tuple[Tensor, int]:
    """A view with each value once, dimensions in memory order, and how often values repeat."""
    flat = tensor.detach()
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    if flat.is_contiguous():
        return flat, 1
    once, times = unrepeated(flat)
    return once.permute(_order(flat.stride())), times


def unrepeated(tensor: Tensor) -> tuple[Tensor, int]:
    """A view with each value once, and how often values repeat in the tensor."""
    times = 1
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor, times = tensor.narrow(dim, 0, 1), times * size
    return tensor, times


def rebuild(dense: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Rebuild a tensor of this shape and these strides from the result of `values`."""
    if any(size == 0 for size in shape):
        return torch.empty_strided(shape, stride, dtype=dense.dtype)
    if dense.shape == shape and dense.stride() == stride:
        return dense
    once = tuple(
        1 if step == 0 and size > 1 else size for size, step in zip(shape, stride, strict=True)
    )
    order = _order(stride)
    ordered = dense.reshape([once[dim] for dim in order])
    back = sorted(range(len(order)), key=lambda at: order[at])
    view = ordered.permute(back)
    if _same_strides(view, stride):
        return dense.as_strided(shape, stride)
    memory = torch.zeros(extent(shape, stride), dtype=dense.dtype)
    memory.as_strided(once, stride).copy_(view)
    return memory.as_strided(shape, stride)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements from the first to the last of a tensor that has elements."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _order(stride: tuple[int, ...]) -> list[int]:
    return sorted(range(len(stride)), key=lambda dim: -stride[dim])


def _same_strides(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether a tensor has these strides; strides of single elements do not count."""
    return all(
        size == 1 or own == wanted
        for size, own, wanted in zip(tensor.shape, tensor.stride(), stride, strict=True)
    )


def sample(tensor: Tensor) -> bytes:
    """Copy a few elements from the middle of a tensor to the host."""
    length = extent(tensor.shape, tensor.stride()) if tensor.numel() else 0
    count = min(length, SAMPLED)
    start = tensor.storage_offset() + (length - count) // 2
    few = tensor.detach().as_strided((count,), (1,), start).cpu()
    return few.view(torch.uint8).numpy().tobytes()
