"""A tensor at one moment: what it was, and its values on the host, no more bytes than it has."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

T = TypeVar("T")
SAMPLED = 32  # elements that are looked at to see whether memory is as it was
DENSE = 4  # parts of the key of a tensor without gaps
SWEEP = 4096  # so many entries later, those of freed memory are forgotten


class Unsupported(Exception):
    """A value that cannot be taken; the text is the reason."""


@dataclass(slots=True, eq=False)
class Blob:
    """The values of a tensor, or, in a packed store, where they are written."""

    values: Tensor | None
    nbytes: int
    place: Any = None


@dataclass(slots=True, eq=False)  # hot path: one for each tensor of each call
class Snapshot:
    """What a tensor was, and its values: dense, in the order of its memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool
    data_ptr: int
    blob: Blob = field(repr=False)

    def tensor(self) -> Tensor:
        """The tensor again, on the CPU, with its strides."""
        assert self.blob.values is not None  # asked for before they are written
        return rebuild(self.blob.values, self.shape, self.stride)


def check(tensor: Tensor) -> None:
    """Raises Unsupported for a kind of tensor whose memory is not a plain grid of values."""
    if tensor.is_quantized:
        raise Unsupported("a quantized tensor")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise Unsupported(f"a tensor of layout {tensor.layout}")


def describe(tensor: Tensor, blob: Blob) -> Snapshot:
    """The snapshot of a tensor whose values are known."""
    return Snapshot(
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        device_name(tensor.device),
        tensor.requires_grad,
        _address(tensor),
        blob,
    )


@cache
def device_name(device: torch.device) -> str:
    """ "dipu:0"."""
    return str(device)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.numel() else 0


def values(tensor: Tensor) -> Tensor:
    """A copy of the values on the host: dense, in the order of its memory.

    A dimension that repeats its values (stride 0, as `expand` makes it) is kept once.
    """
    check(tensor)
    flat, _ = ordered(tensor)
    copied = flat.contiguous().cpu()
    return copied.clone() if copied.data_ptr() == tensor.data_ptr() else copied


def ordered(tensor: Tensor) -> tuple[Tensor, int]:
    """A view whose dimensions are in the order of memory, each value once; how often each was."""
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
    """The tensor of this shape and these strides from what `values` gave."""
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


class Unchanged(Generic[T]):
    """What was made of a tensor, for as long as its memory holds the same values.

    Memory is known by a weak reference to it (an address is used again) and by autograd's count
    of writes. Not every write counts (one through `.data`, a collective), so a few elements are
    looked at as well, unless every kernel is seen: then `put` comes after each write.
    """

    def __init__(self, sampled: bool = True) -> None:
        self._sampled = sampled
        self._known: dict[Any, tuple[StorageWeakRef, int, int, bytes, T]] = {}
        self._written: dict[int, int] = {}  # memory, and when it was written last
        self._writes = 0
        self._sweep_at = SWEEP
        self._lock = threading.Lock()

    def trust_nobody(self) -> None:
        """Not every kernel is seen any more; what was kept without a look at it is like none."""
        self._sampled = True

    def key(self, tensor: Tensor) -> Any:
        """Its place, the memory first; None: it has none, or nothing counts its writes."""
        return key_of(tensor)

    def get(self, tensor: Tensor) -> T | None:
        """What was made of it; None when it is new, or changed."""
        return self.find(tensor)[1]

    def find(self, tensor: Tensor) -> tuple[Any, T | None]:
        """The same, with the key of its place for `keep`."""
        key = self.key(tensor)
        entry = self._known.get(key) if key is not None else None
        if entry is None or _expired(entry[0].cdata):
            return key, None
        _, version, made_at, few, made = entry
        if tensor._version != version or self._written.get(key[0], 0) > made_at:
            return key, None
        return key, made if not self._sampled or few == sample(tensor) else None

    def put(self, tensor: Tensor, made: T, dense: Tensor) -> None:
        """Remembers; what was made of the same place before is forgotten.

        `dense` has its values on the host, as `ordered` gives them.
        """
        self.keep(self.key(tensor), tensor, made, dense)

    def keep(self, key: Any, tensor: Tensor, made: T, dense: Tensor) -> None:
        """Remembers it for a place whose key is known; None: a tensor that has none."""
        if key is None:
            return
        weak = StorageWeakRef(tensor.untyped_storage())
        few = b""
        if self._sampled:
            few = middle(dense) if len(key) == DENSE else sample(tensor)
        with self._lock:
            self._known[key] = (weak, tensor._version, self._writes, few, made)
            if len(self._known) > self._sweep_at:
                self._sweep()

    def _sweep(self) -> None:
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        live = {key[0] for key in self._known}
        self._written = {place: at for place, at in self._written.items() if place in live}
        self._sweep_at = len(self._known) + SWEEP

    def forget(self, tensor: Tensor) -> None:
        """A call has written it, and so every view of its memory; autograd may count that only
        later, or (where a list is written) not at all.
        """
        if not self._known or tensor.layout != torch.strided or tensor.is_nested:
            return
        with self._lock:
            self._writes += 1
            self._written[tensor.untyped_storage()._cdata] = self._writes


_expired = torch.UntypedStorage._expired


def key_of(tensor: Tensor) -> Any:
    """The place of a tensor in memory; None when it has none, or no count of writes."""
    if not tensor.numel() or tensor.is_inference() or tensor.is_conj() or tensor.is_neg():
        return None
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype)
    if tensor.is_contiguous() or is_dense(tensor):
        return (*place, tensor.numel())  # all views of the same values are one
    return (*place, tensor.shape, tensor.stride())


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a piece of memory, each place once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def middle(dense: Tensor) -> bytes:
    """What `sample` gives, from the values on the host."""
    size = dense.numel()
    count = min(size, SAMPLED)
    few = dense.as_strided((count,), (1,), dense.storage_offset() + (size - count) // 2)
    return _bytes(few)


def sample(tensor: Tensor) -> bytes:
    """A few of its elements, from its middle: one small copy, whatever the device."""
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
