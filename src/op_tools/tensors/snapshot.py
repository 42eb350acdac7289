# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tensors: type, layout, device and a dense copy of the values on the host."""

from __future__ import annotations

from collections.abc import Callable
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
        _address(tensor),
        values,
    )


def once(take: Callable[[Tensor], Snapshot]) -> Callable[[Tensor], Snapshot]:
    """Wrap `take` so that it reads a tensor only once, however often it is given."""
    made: dict[int, tuple[Tensor, Snapshot]] = {}  # holds the tensors: an id may be used again

    def snapshot(tensor: Tensor) -> Snapshot:
        found = made.get(id(tensor))
        if found is None:
            found = made[id(tensor)] = tensor, take(tensor)
        return found[1]

    return snapshot


@cache
def device_name(device: torch.device) -> str:
    """ "dipu:0"."""
    return str(device)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.numel() else 0


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
    times = 1
    stride = flat.stride()
    if 0 in stride:
        for dim, size in enumerate(flat.shape):
            if size > 1 and stride[dim] == 0:
                flat, times = flat.narrow(dim, 0, 1), times * size
    return flat.permute(_order(stride)), times


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
    seen = ordered.permute(back)
    if _same_strides(seen, stride):
        return dense.as_strided(shape, stride)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    memory = torch.zeros(span, dtype=dense.dtype)
    memory.as_strided(once, stride).copy_(seen)
    return memory.as_strided(shape, stride)


def _order(stride: tuple[int, ...]) -> list[int]:
    return sorted(range(len(stride)), key=lambda dim: -stride[dim])


def _same_strides(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether its elements lie where these strides say; those of single elements do not count."""
    return all(
        size == 1 or own == wanted
        for size, own, wanted in zip(tensor.shape, tensor.stride(), stride, strict=True)
    )


def sample(tensor: Tensor) -> bytes:
    """Copy a few elements from the middle of a tensor to the host."""
    span = tensor.numel()
    if not tensor.is_contiguous():
        shape, stride = tensor.shape, tensor.stride()
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    count = min(span, SAMPLED)
    start = tensor.storage_offset() + (span - count) // 2
    return _bytes(tensor.detach().as_strided((count,), (1,), start).cpu())


def _bytes(few: Tensor) -> bytes:
    array = few.numpy() if few.dtype in _OF_NUMPY else few.view(torch.uint8).numpy()
    return array.tobytes()


_OF_NUMPY = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})
