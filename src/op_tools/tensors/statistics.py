# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor: min, max, mean, norm, the number of non-finite values, and a hash.

The numbers are over the finite values, in float64. The hash is over the bytes in the order of
memory: it changes when an element changes, moves, or changes its sign; `x` and `x.t()` have equal
hashes. The native part computes everything in one pass; without a compiler NumPy does.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from op_tools.core import native_library
from op_tools.tensors import snapshot
from op_tools.tensors.statistics_reference import Statistics, fields_of, hash_bytes, statistics_of


def of(tensor: Tensor, hash_only: bool = False) -> Statistics:
    """The statistics of a tensor of any device; of a complex one, of its parts."""
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        raise ValueError(f"no statistics of a tensor of layout {tensor.layout}")
    ordered, times = snapshot.ordered(tensor)
    host = _on_host(ordered).contiguous()
    parts = torch.view_as_real(host) if host.is_complex() else host
    flat = parts.as_strided((parts.numel(),), (1,))  # not `reshape`: a stride may be 0
    helper = native_library.helper()
    if helper is not None and flat.dtype in NATIVE:
        kind, count = NATIVE[flat.dtype], flat.numel()
        return Statistics(*helper.measure(flat.data_ptr(), count, kind, hash_only, times))
    hashed = hash_bytes(flat.view(torch.uint8).numpy())
    result = statistics_of(fields_of(flat), flat.numel(), hashed, times)
    return Statistics(result.hash) if hash_only else result


def _on_host(tensor: Tensor) -> Tensor:
    """The tensor's values on the host: the device's memory itself, where the host may read it."""
    kind = tensor.device.type
    host_view = None if kind == "cpu" else getattr(torch.get_device_module(kind), "host_view", None)
    view: Tensor | None = host_view(tensor) if host_view and tensor.numel() else None
    return tensor.cpu() if view is None else view


def is_seen(tensor: Tensor) -> bool:
    """Whether the host reads the tensor's memory without a copy."""
    return kind_is_seen(tensor.device.type)


@cache
def kind_is_seen(kind: str) -> bool:
    """Whether the host reads the memory of a kind of device without a copy."""
    if kind == "cpu":
        return True
    module = torch.get_device_module(kind)
    window = getattr(module, "host_window", None)
    return window() is not None if window is not None else hasattr(module, "host_view")


def hash_of(tensor: Tensor) -> int:
    """The hash of a dense tensor's memory on the CPU."""
    helper = native_library.helper()
    if helper is not None:
        size = tensor.numel() * tensor.element_size()
        return int(helper.hash(tensor.data_ptr(), size))
    return hash_bytes(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy())


# The numbers of the types of values in the native part.
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
