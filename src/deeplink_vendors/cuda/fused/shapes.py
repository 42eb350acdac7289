# SPDX-License-Identifier: Apache-2.0
"""What the kernels share: types they have, sizes as they want them, rows that lie apart."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int32, torch.int64)
LONGEST = 65536  # elements of a row that one program holds


def power(size: int, least: int = 1) -> int:
    """The power of two that holds so many."""
    return max(least, int(triton.next_power_of_2(size)))


def same(*tensors: Tensor | None) -> bool:
    """Whether all have one type that the kernels have, on one device."""
    given = [t for t in tensors if t is not None]
    first = given[0]
    return first.dtype in FLOATS and all(
        t.dtype == first.dtype and t.device == first.device for t in given
    )


def rows(x: Tensor) -> tuple[Tensor, int, int]:
    """x as rows along its last dimension that are dense each, how many, and how far apart."""
    if not (x.dim() == 2 and x.stride(1) == 1):
        x = x.contiguous()
    size = max(x.shape[-1], 1)
    return x, x.numel() // size, x.stride(0) if x.dim() == 2 else size


def dense(x: Tensor) -> Tensor:
    """With a dense last dimension."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def warps(block: int) -> int:
    """For a row of so many elements: 512 for each."""
    return min(16, max(1, block // 512))


@functools.cache
def processors(device: torch.device) -> int:
    """How many run at once; of a host that plays the device, one."""
    if device.type != "cuda":
        return 1
    found: Any = torch.cuda.get_device_properties(device)
    return int(found.multi_processor_count)
