# SPDX-License-Identifier: Apache-2.0
"""Pooling in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diopi.gradient import gradient
from diopi.op import FLOATS, op

FAMILY = "pooling"
NN = "nn.functional."
DIMENSIONS = (1, 2, 3)


def max_pool1d_backward(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the gradient of max_pool1d: it goes to the largest element of each window."""
    del kernel_size, stride, padding, dilation, ceil_mode  # a kernel may need them
    return torch.zeros_like(input).scatter_add_(-1, indices, grad_output)


def avg_pool1d_backward(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Tensor:
    """Return the gradient of avg_pool1d."""
    arguments: Any = (kernel_size, stride, padding, ceil_mode, count_include_pad)
    return gradient(lambda x: functional.avg_pool1d(x, *arguments), (input,), grad_output)


def adaptive_max_pool1d_backward(grad_output: Tensor, input: Tensor, indices: Tensor) -> Tensor:
    """Return the gradient of adaptive_max_pool1d: it goes to the largest element of each window."""
    return torch.zeros_like(input).scatter_add_(-1, indices, grad_output)


def adaptive_avg_pool1d_backward(grad_output: Tensor, input: Tensor) -> Tensor:
    """Return the gradient of adaptive_avg_pool1d."""
    size = grad_output.shape[-1]
    return gradient(lambda x: functional.adaptive_avg_pool1d(x, size), (input,), grad_output)


def pool(dimensions: int) -> Callable[..., Tensor]:
    def meaning(
        input: Tensor,
        mode: str,
        ksize: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        output_size: list[int],
    ) -> Tensor:
        """Pooling that `mode` ("max", "avg") and `adaptive` select."""
        if adaptive:
            adapted: Tensor = _function("adaptive_", mode, dimensions)(input, output_size)
            return adapted
        rest = (dilation, ceil_mode) if mode == "max" else (ceil_mode, not exclusive)
        pooled: Tensor = _function("", mode, dimensions)(input, ksize, stride, padding, *rest)
        return pooled

    return meaning


def pool_backward(dimensions: int) -> Callable[..., Tensor]:
    forward = pool(dimensions)

    def meaning(
        grad_output: Tensor,
        input: Tensor,
        mode: str,
        ksize: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        indices: Tensor | None = None,
    ) -> Tensor:
        """Return the gradient of the pooling; `indices` are those of a max pooling."""
        if mode == "max" and indices is not None:
            flat = torch.zeros_like(input).flatten(-dimensions)
            where, grad = indices.flatten(-dimensions), grad_output.flatten(-dimensions)
            return flat.scatter_add_(-1, where, grad).view_as(input)
        size = list(grad_output.shape[-dimensions:])
        arguments = (mode, ksize, stride, padding, dilation, ceil_mode, exclusive, adaptive, size)
        return gradient(lambda x: forward(x, *arguments), (input,), grad_output)

    return meaning


def _function(prefix: str, mode: str, dimensions: int) -> Any:
    return getattr(functional, f"{prefix}{mode}_pool{dimensions}d")


# fmt: off
op("max_pool1d_backward", FAMILY, kind="reduction", dtypes=FLOATS, meaning=max_pool1d_backward,
   opinfo=NN + "max_pool1d")
op("avg_pool1d_backward", FAMILY, kind="reduction", dtypes=FLOATS, meaning=avg_pool1d_backward,
   opinfo=NN + "avg_pool1d")
op("adaptive_max_pool1d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
   meaning=adaptive_max_pool1d_backward, opinfo=NN + "adaptive_max_pool1d")
op("adaptive_avg_pool1d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
   meaning=adaptive_avg_pool1d_backward, opinfo=NN + "adaptive_avg_pool1d")

for n in DIMENSIONS:
    op(f"max_pool{n}d", FAMILY, kind="exact", dtypes=FLOATS, opinfo=f"{NN}max_pool{n}d",
       backward=f"max_pool{n}d_backward")
    op(f"max_pool{n}d_with_indices", FAMILY, kind="index", dtypes=FLOATS,
       opinfo=f"{NN}max_pool{n}d", backward=f"max_pool{n}d_backward")
    op(f"avg_pool{n}d", FAMILY, kind="reduction", dtypes=FLOATS, opinfo=f"{NN}avg_pool{n}d",
       backward=f"avg_pool{n}d_backward")
    op(f"adaptive_max_pool{n}d", FAMILY, kind="index", dtypes=FLOATS,
       opinfo=f"{NN}adaptive_max_pool{n}d", backward=f"adaptive_max_pool{n}d_backward")
    leaf = f"_adaptive_avg_pool{n}d" if n > 1 else "adaptive_avg_pool1d"
    both = f"{leaf} adaptive_avg_pool{n}d" if n > 1 else leaf
    op(f"adaptive_avg_pool{n}d", FAMILY, aten=both, kind="reduction", dtypes=FLOATS,
       opinfo=f"{NN}adaptive_avg_pool{n}d", backward=f"adaptive_avg_pool{n}d_backward")
    op(f"pool{n}d", FAMILY, kind="reduction", dtypes=FLOATS, meaning=pool(n), opinfo="",
       backward=f"pool{n}d_backward")
    op(f"pool{n}d_backward", FAMILY, kind="reduction", dtypes=FLOATS, meaning=pool_backward(n),
       opinfo="")
    if n > 1:
        op(f"max_pool{n}d_backward", FAMILY, aten=f"max_pool{n}d_with_indices_backward",
           kind="reduction", dtypes=FLOATS, opinfo=f"{NN}max_pool{n}d")
        op(f"avg_pool{n}d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
           opinfo=f"{NN}avg_pool{n}d")
        op(f"adaptive_max_pool{n}d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
           opinfo=f"{NN}adaptive_max_pool{n}d")
        op(f"adaptive_avg_pool{n}d_backward", FAMILY, aten=f"_adaptive_avg_pool{n}d_backward",
           kind="reduction", dtypes=FLOATS, opinfo=f"{NN}adaptive_avg_pool{n}d")
