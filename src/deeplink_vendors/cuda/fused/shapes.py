# SPDX-License-Identifier: Apache-2.0
"""Helpers of the kernels: supported types, padded sizes, strided rows."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int32, torch.int64)
LONGEST = 65536  # maximum elements of a row in one program


def power(size: int, least: int = 1) -> int:
    """Return the least power of two that holds a size."""
    return max(least, int(triton.next_power_of_2(size)))


def same(*tensors: Tensor | None) -> bool:
    """Whether all tensors have one supported type, on one device."""
    given = [t for t in tensors if t is not None]
    first = given[0]
    return first.dtype in FLOATS and all(
        t.dtype == first.dtype and t.device == first.device for t in given
    )


def rows(x: Tensor) -> tuple[Tensor, int, int]:
    """Return x as dense rows along its last dimension, their number, and their distance."""
    if not (x.dim() == 2 and x.stride(1) == 1):
        x = x.contiguous()
    size = max(x.shape[-1], 1)
    return x, x.numel() // size, x.stride(0) if x.dim() == 2 else size


def dense(x: Tensor) -> Tensor:
    """Make the last dimension dense."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def warps(block: int) -> int:
    """Return the warps for a row: one for 512 elements."""
    return min(16, max(1, block // 512))


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors; one for a host that emulates the device."""
    if device.type != "cuda":
        return 1
    found: Any = torch.cuda.get_device_properties(device)
    return int(found.multi_processor_count)
