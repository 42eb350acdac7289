"""What a tensor's values amount to: min, max, mean, norm, how many are not finite, and a hash.

The numbers are over the finite values, in float64; without the native helper those of large
float32 tensors are summed in rows of float32 first, and good to about seven digits. The hash is
over the bytes in the order of memory: it changes when an element changes, moves, or changes its
sign, and two views of the same values (`x`, `x.t()`) have the same. The native helper gives the
same in one pass; it is built on first use, and done without where there is no compiler.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from op_tools import kernels, pool, snapshot

SMALL = 1 << 15  # bytes for which new memory costs nothing
STAGED = 1 << 28  # bytes of a thread's memory on the host at most
BLOCK = 16384  # words of 8 bytes that are summed before they are mixed
GROUP = 4  # blocks that are hashed together
ROW = 1024  # values that are summed as they are
ORDINARY = (1e-12, 1e15)  # the greatest magnitude, where squares of float32 are good
MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Statistics(NamedTuple):
    """Of one tensor; None: there is no finite value, or it was not asked for."""

    hash: int
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    norm: float | None = None
    nonfinite: int = 0

    @property
    def hex(self) -> str:
        return f"{self.hash:016x}"


def of(tensor: Tensor, hash_only: bool = False) -> Statistics:
    """The statistics of a tensor of any device; of a complex one, of its parts."""
    host, times = hosted(tensor)
    return measured(host, times, hash_only)


def hosted(tensor: Tensor) -> tuple[Tensor, int]:
    """Its values on the host, in the order of memory, until the next call; how often each is."""
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        raise ValueError(f"no statistics of a tensor of layout {tensor.layout}")
    flat, times = snapshot.ordered(tensor)
    if flat.device.type == "cpu":
        return flat.contiguous(), times
    seen = _seen_by_host(flat)
    return (_staged(flat) if seen is None else seen.contiguous()), times


def is_seen(tensor: Tensor) -> bool:
    """Whether the host reads the tensor's memory without a copy."""
    return kind_is_seen(tensor.device.type)


@cache
def kind_is_seen(kind: str) -> bool:
    """The same, of a kind of device."""
    if kind == "cpu":
        return True
    module = torch.get_device_module(kind)
    window = getattr(module, "host_window", None)
    return window() is not None if window is not None else hasattr(module, "host_view")


def _seen_by_host(tensor: Tensor) -> Tensor | None:
    """The device's memory itself, where the device lets the host read it."""
    view = getattr(torch.get_device_module(tensor.device), "host_view", None)
    found: Tensor | None = view(tensor) if view is not None and tensor.numel() else None
    return found


def measured(host: Tensor, times: int = 1, hash_only: bool = False) -> Statistics:
    """The statistics of what `hosted` gave."""
    if host.is_complex():
        host = torch.view_as_real(host)
    helper = kernels.helper()
    if helper is not None and host.dtype in NATIVE:
        kind = NATIVE[host.dtype]
        found = Statistics(*helper.measure(host.data_ptr(), host.numel(), kind, hash_only))
    else:
        numbers = () if hash_only or not host.numel() else _numbers(host)
        found = Statistics(hash_bytes(_bytes(host)), *numbers)
    return repeated(found, times)


def repeated(found: Statistics, times: int) -> Statistics:
    """The statistics of values that are each seen so often."""
    if times == 1:
        return found
    norm = None if found.norm is None else found.norm * math.sqrt(times)
    hashed = _avalanche((found.hash + times * P1) & MASK)
    return found._replace(hash=hashed, norm=norm, nonfinite=found.nonfinite * times)


def _staged(tensor: Tensor) -> Tensor:
    """Its values on the host until the next call: memory that is new each time costs more."""
    size = tensor.numel() * tensor.element_size()
    if not SMALL < size <= STAGED:
        return tensor.contiguous().cpu()
    if _local.memory.numel() < size:
        _local.memory = pool.host_memory(max(size, 1 << 20), tensor.device)
    there = _local.memory[:size].view(tensor.dtype).view(tensor.shape)
    return there.copy_(tensor)


class _Local(threading.local):
    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.upper = np.empty(GROUP * BLOCK, np.uint64)


_local = _Local()


def hash_of(tensor: Tensor) -> int:
    """The hash of a dense tensor's memory on the CPU."""
    helper = kernels.helper()
    if helper is not None:
        size = tensor.numel() * tensor.element_size()
        return int(helper.hash(tensor.data_ptr(), size))
    return hash_bytes(_bytes(tensor))


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    # not `reshape`: one element may have a stride of 0
    array: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return array


# Without the native helper.


def hash_bytes(data: NDArray[np.uint8] | bytes | memoryview) -> int:
    """A 64-bit hash of bytes that depends on the place of each of them.

    Of each block: two sums of its words times odd numbers, modulo 2**64, the second of the
    words' upper halves (a sum alone is blind to an even count of flipped top bits).
    """
    array = np.frombuffer(data, dtype=np.uint8)
    words = array[: array.size // 8 * 8].view(np.uint64)
    mixed = (array.size * P1 + P2) & MASK
    for group in _groups(words):
        mixed = _mix(mixed, group)
    if array.size % 8:
        tail = np.zeros(8, np.uint8)
        tail[: array.size % 8] = array[words.size * 8 :]
        mixed = _mix(mixed, tail.view(np.uint64)[None])
    return _avalanche(mixed)


def sums_of(data: bytes) -> tuple[int, int]:
    """The two sums of a block, whose last word may be a part of one; as int64."""
    words = np.frombuffer(data + bytes(-len(data) % 8), dtype=np.int64)
    factors = keys()[: words.size].view(np.int64)
    with np.errstate(over="ignore"):
        return int((words * factors).sum()), int(((words >> 32 & 0xFFFFFFFF) * factors).sum())


def _groups(words: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Whole blocks as rows, so many as fit into a cache, and then the rest as one."""
    whole = words.size // BLOCK
    blocks = words[: whole * BLOCK].reshape(whole, BLOCK)
    for start in range(0, whole, GROUP):
        yield blocks[start : start + GROUP]
    if words.size % BLOCK:
        yield words[whole * BLOCK :][None]


def _mix(mixed: int, rows: NDArray[np.uint64]) -> int:
    factors = keys()[: rows.shape[1]]
    upper = _local.upper[: rows.size].reshape(rows.shape)
    np.right_shift(rows, 32, out=upper)
    firsts, seconds = (np.einsum("ij,j->i", each, factors).tolist() for each in (rows, upper))
    for first, second in zip(firsts, seconds, strict=True):
        mixed = _mix_sums(mixed, first, second)
    return mixed


def _mix_sums(mixed: int, first: int, second: int) -> int:
    mixed = ((mixed ^ first) * P1 + (((second << 29) | (second >> 35)) & MASK)) & MASK
    return mixed ^ (mixed >> 32)


def hash_of_sums(size: int, sums: list[int]) -> int:
    """The hash of so many bytes from the two sums of each block, one after the other."""
    mixed = (size * P1 + P2) & MASK
    for first, second in zip(sums[::2], sums[1::2], strict=True):
        mixed = _mix_sums(mixed, first, second)
    return _avalanche(mixed)


def _avalanche(value: int) -> int:
    value = ((value ^ (value >> 30)) * P2) & MASK
    value = ((value ^ (value >> 27)) * P3) & MASK
    return value ^ (value >> 31)


@cache
def keys() -> NDArray[np.uint64]:
    """Odd numbers without a pattern, the same everywhere."""
    with np.errstate(over="ignore"):
        state = np.arange(1, BLOCK + 1, dtype=np.uint64) * np.uint64(P1)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(P2)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(P3)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


_Numbers = tuple[Any, Any, float | None, float | None, int]


def _numbers(host: Tensor) -> _Numbers:
    if not host.is_floating_point():
        return _whole(host.numpy() if host.dtype != torch.bool else host.to(torch.uint8).numpy())
    if host.dtype not in (torch.float32, torch.float64):
        host = host.to(torch.float32)  # exact
    array = host.numpy()
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return _of_finite(array)
    fits = ORDINARY[0] < max(-low, high) < ORDINARY[1]
    if host.dtype == torch.float32 and host.numel() > 8 * ROW and fits:
        total, squares = _by_rows(host)
    else:
        wide = array.reshape(-1).astype(np.float64)
        total, squares = float(wide.sum()), float(np.dot(wide, wide))
    return low, high, total / host.numel(), math.sqrt(squares), 0


def _by_rows(host: Tensor) -> tuple[float, float]:
    """The sum and that of squares, each row in float32, the rows and the rest in float64."""
    flat = host.as_strided((host.numel(),), (1,))
    whole = host.numel() // ROW
    rows = flat[: whole * ROW].view(whole, ROW)
    rest = flat[whole * ROW :].double()
    sums, norms = rows.mv(_ones()).double(), torch.linalg.vector_norm(rows, dim=1).double()
    return float(sums.sum() + rest.sum()), float(norms.dot(norms) + rest.dot(rest))


@cache
def _ones() -> Tensor:
    return torch.ones(ROW)


def _of_finite(array: NDArray[Any]) -> _Numbers:
    finite = array[np.isfinite(array)]
    bad = array.size - finite.size
    if not finite.size:
        return None, None, None, None, bad
    return (*_numbers(torch.from_numpy(finite))[:4], bad)


def _whole(array: NDArray[Any]) -> tuple[int, int, float, float, int]:
    wide = array.astype(np.float64).reshape(-1)
    mean, norm = float(wide.sum()) / array.size, math.sqrt(float(np.square(wide).sum()))
    return int(array.min()), int(array.max()), mean, norm, 0


# The native helper.

# the kinds of values, by number
NATIVE = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 8,
}


def is_native() -> bool:
    """Whether the native helper is there; builds it when it can be."""
    return kernels.helper() is not None
