"""What a tensor's values amount to: min, max, mean, norm, how many are not finite, and a hash.

The numbers are over the finite values, in float64. The hash is over the bytes in the order of
memory: it changes when an element changes, moves, or changes its sign, and two views of the same
values (`x`, `x.t()`) have the same. The native helper gives all of it in one pass; it is built on
first use. Where there is no compiler NumPy computes the same, more slowly.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from op_tools.core import native_library
from op_tools.tensors import snapshot
from op_tools.tensors.staging import page_locked
from op_tools.tensors.statistics_reference import Statistics, fields_of, hash_bytes, statistics_of

SMALL = 1 << 15  # bytes for which new memory costs nothing
STAGED = 1 << 28  # bytes of a thread's memory on the host at most


def of(tensor: Tensor, hash_only: bool = False) -> Statistics:
    """The statistics of a tensor of any device; of a complex one, of its parts."""
    host, times = hosted(tensor)
    return measured(host, times, hash_only)


def hosted(tensor: Tensor) -> tuple[Tensor, int]:
    """Its values on the host, in the order of memory, until the next call; how often each is."""
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        raise ValueError(f"no statistics of a tensor of layout {tensor.layout}")
    if tensor.is_contiguous() and not tensor.is_complex() and not tensor.is_neg():
        seen = _in_window(tensor)
        if seen is not None:
            return seen, 1
    flat, times = snapshot.ordered(tensor)
    if flat.device.type == "cpu":
        return flat.contiguous(), times
    seen = _seen_by_host(flat)
    if seen is not None:
        return (seen if seen.is_contiguous() else _staged(seen)), times
    return _staged(flat), times


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


def _in_window(tensor: Tensor) -> Tensor | None:
    """The memory of a dense tensor itself, where all of the device's is in the host's sight: the
    same as `_seen_by_host` and quicker. None: it is not, or there is nothing to see.
    """
    device, count = tensor.device, tensor.numel()
    if device.type == "cpu" or not count:
        return None
    window = _window_of(device, tensor.dtype)
    if window is None:
        return None
    place, rest = divmod(tensor.data_ptr() - window[0], tensor.element_size())
    if rest or not 0 <= place <= window[1].numel() - count:
        return None
    torch.accelerator.current_stream(device.index).synchronize()
    return window[1].as_strided((count,), (1,), place)


@cache
def _window_of(device: torch.device, dtype: torch.dtype) -> tuple[int, Tensor] | None:
    """The device's first address, and all of its memory as values of a type."""
    window = getattr(torch.get_device_module(device.type), "host_window", None)
    found = window(device.index) if window is not None else None
    if found is None:
        return None
    start, host, size = found
    memory = (ctypes.c_uint8 * (size // 16 * 16)).from_address(host)
    return start, torch.frombuffer(memory, dtype=dtype)


def _seen_by_host(tensor: Tensor) -> Tensor | None:
    """The device's memory itself, where the device lets the host read it."""
    view = _view_of(tensor.device.type)
    return view(tensor) if view is not None and tensor.numel() else None


@cache
def _view_of(kind: str) -> Callable[[Tensor], Tensor | None] | None:
    view: Callable[[Tensor], Tensor | None] | None
    view = getattr(torch.get_device_module(kind), "host_view", None)
    return view


def measured(host: Tensor, times: int = 1, hash_only: bool = False) -> Statistics:
    """The statistics of what `hosted` gave: by the native part, or by NumPy."""
    if host.is_complex():
        host = torch.view_as_real(host)
    helper = native_library.helper()
    if helper is not None and host.dtype in NATIVE:
        kind, count = NATIVE[host.dtype], host.numel()
        return Statistics(*helper.measure(host.data_ptr(), count, kind, hash_only, times))
    flat = host.as_strided((host.numel(),), (1,))  # not `reshape`: a stride may be 0
    hashed = hash_bytes(flat.view(torch.uint8).numpy())
    found = statistics_of(fields_of(flat), flat.numel(), hashed, times)
    return Statistics(found.hash) if hash_only else found


def _staged(tensor: Tensor) -> Tensor:
    """Its values on the host until the next call: memory that is new each time costs more."""
    size = tensor.numel() * tensor.element_size()
    if not SMALL < size <= STAGED:
        return tensor.contiguous().cpu()
    if _local.memory.numel() < size:
        room = max(size, 1 << 20)
        found = page_locked(room) if tensor.device.type == "cuda" else None
        _local.memory = torch.empty(room, dtype=torch.uint8) if found is None else found
    there = _local.memory[:size].view(tensor.dtype).view(tensor.shape)
    return there.copy_(tensor)


class _Local(threading.local):
    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)


_local = _Local()


def hash_of(tensor: Tensor) -> int:
    """The hash of a dense tensor's memory on the CPU."""
    helper = native_library.helper()
    if helper is not None:
        size = tensor.numel() * tensor.element_size()
        return int(helper.hash(tensor.data_ptr(), size))
    return hash_bytes(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy())


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
