"""What a tensor's values amount to: min, max, mean, norm, how many are not finite, and a hash.

The numbers are over the finite values, in float64. The hash is over the bytes in the order of
memory: it changes when an element changes, moves, or changes its sign, and two views of the same
values (`x`, `x.t()`) have the same. The native helper gives the same numbers and hash in one pass;
it is built on first use, and done without where there is no compiler.
"""

from __future__ import annotations

import math
import threading
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
    if helper is not None and host.dtype in _NATIVE:
        kind = _NATIVE[host.dtype]
        found = Statistics(*helper.measure(host.data_ptr(), host.numel(), kind, hash_only))
    else:
        numbers = () if hash_only or not host.numel() else _numbers(host)
        found = Statistics(hash_bytes(_bytes(host)), *numbers)
    return found if times == 1 else _repeated(found, times)


def _repeated(found: Statistics, times: int) -> Statistics:
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
    whole = array.size // 8
    words = array[: whole * 8].view(np.uint64)
    mixed = (array.size * P1 + P2) & MASK
    keys = _keys()
    upper = np.empty(min(BLOCK, whole), np.uint64)
    for start in range(0, whole, BLOCK):
        block = words[start : start + BLOCK]
        mixed = _mix(mixed, block, keys[: block.size], upper[: block.size])
    if array.size % 8:
        tail = np.zeros(8, np.uint8)
        tail[: array.size % 8] = array[whole * 8 :]
        mixed = _mix(mixed, tail.view(np.uint64), keys[:1], np.empty(1, np.uint64))
    return _avalanche(mixed)


def _mix(
    mixed: int, words: NDArray[np.uint64], keys: NDArray[np.uint64], upper: NDArray[np.uint64]
) -> int:
    first = int(np.dot(words, keys))
    np.right_shift(words, np.uint64(32), out=upper)
    second = int(np.dot(upper, keys))
    mixed = ((mixed ^ first) * P1 + (((second << 29) | (second >> 35)) & MASK)) & MASK
    return mixed ^ (mixed >> 32)


def _avalanche(value: int) -> int:
    value = ((value ^ (value >> 30)) * P2) & MASK
    value = ((value ^ (value >> 27)) * P3) & MASK
    return value ^ (value >> 31)


@cache
def _keys() -> NDArray[np.uint64]:
    """Odd numbers without a pattern, the same everywhere."""
    with np.errstate(over="ignore"):
        state = np.arange(1, BLOCK + 1, dtype=np.uint64) * np.uint64(P1)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(P2)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(P3)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


def _numbers(host: Tensor) -> tuple[Any, Any, float | None, float | None, int]:
    if not host.is_floating_point():
        return _whole(host.numpy() if host.dtype != torch.bool else host.to(torch.uint8).numpy())
    if host.dtype not in (torch.float32, torch.float64):
        host = host.to(torch.float32)  # exact
    low, high = (value.item() for value in torch.aminmax(host))
    count = host.numel()
    if math.isfinite(low) and math.isfinite(high):
        total = host.sum(dtype=torch.float64).item()
        norm = torch.linalg.vector_norm(host, dtype=torch.float64).item()
        return low, high, total / count, norm, 0
    finite = host[torch.isfinite(host)]
    bad = count - finite.numel()
    if not finite.numel():
        return None, None, None, None, bad
    return (*_numbers(finite)[:4], bad)


def _whole(array: NDArray[Any]) -> tuple[int, int, float, float, int]:
    wide = array.astype(np.float64).reshape(-1)
    mean, norm = float(wide.sum()) / array.size, math.sqrt(float(np.square(wide).sum()))
    return int(array.min()), int(array.max()), mean, norm, 0


# The native helper.

_NATIVE = {
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
