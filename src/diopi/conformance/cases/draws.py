# SPDX-License-Identifier: Apache-2.0
"""Random arguments with equal bits on every machine.

A generator of torch gives equal integers everywhere, but a kernel's result depends on the
processor: on fused multiply-add, and on the library that computes logarithms. Here the integers are
converted in float64 by steps that are rounded one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GRID = 2.0**30  # normal numbers are multiples of 1/GRID: further bits depend on the library


class Portable(TorchFunctionMode):
    """A mode in which uniform and normal numbers are equal on every machine."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.uniform_:
            return _uniform(*args, **{WORDS.get(key, key): value for key, value in kwargs.items()})
        if func is Tensor.normal_:
            return _normal(*args, **kwargs)
        if func is torch.randn_like:
            return _randn_like(*args, **kwargs)
        if func is torch.randn:
            return _randn(*args, **kwargs)
        return func(*args, **kwargs)


WORDS = {"from": "low", "to": "high"}


def _uniform(
    tensor: Tensor, low: float = 0.0, high: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    drawn = tensor.uniform_(0.0, 1.0, generator=generator)
    if (low, high) == (0.0, 1.0):
        return drawn
    return tensor.copy_(drawn.double() * (high - low) + low)


def _normal(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    drawn = _randn(tensor.shape, dtype=torch.float64, generator=generator)
    return tensor.copy_(drawn * std + mean)


def _randn_like(tensor: Tensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    room = torch.empty_like(tensor, dtype=dtype, **kwargs)
    return (
        room.detach()
        .copy_(_randn(tensor.shape, dtype=room.dtype))
        .requires_grad_(room.requires_grad)
    )


def _randn(*size: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    wants = kwargs.pop("requires_grad", False)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    drawn = torch.randn(*size, dtype=wide, **kwargs)
    parts = torch.view_as_real(drawn) if dtype.is_complex else drawn
    parts.copy_((parts * GRID).round() / GRID)
    return drawn.to(dtype).requires_grad_(wants)
