# SPDX-License-Identifier: Apache-2.0
"""Fused operators: torch ops of the namespace `dicp`. Each is a plain torch function that is its
meaning, its eager implementation and, on fake tensors, its shape and type inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from diopi import meanings

_LIBRARY = torch.library.Library("dicp", "DEF")  # lives as long as the process

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
NAMES: list[str] = []  # in the order of this file


def _op(parameters: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = function.__name__
        _LIBRARY.define(f"{name}({parameters}) -> Tensor")
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"dicp::{name}", function, lib=_LIBRARY)
        NAMES.append(name)
        return function

    return register


@_op('Tensor x, Tensor w, Tensor? b=None, str activation=""')
def linear(x: Tensor, w: Tensor, b: Tensor | None = None, activation: str = "") -> Tensor:
    """Compute activation(x @ w.T + b); w is [out, in], x has any leading dimensions."""
    return ACTIVATIONS[activation](F.linear(x, w, b))


@_op("Tensor x, Tensor w, bool measured=False")
def few_rows(x: Tensor, w: Tensor, measured: bool = False) -> Tensor:
    """Compute x @ w.T for few rows of x, where reading w determines the time, or where the kernel
    was
    measured as faster than torch's product; w is [out, in].
    """
    return F.linear(x, w).contiguous()


@_op("Tensor x, Tensor w, float eps")
def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square over the last dimension and multiply by w,
    in float32 or wider.
    """
    return meanings.rms_norm(x, w, eps)


@_op("Tensor x, int dims, Tensor? w, Tensor? b, float eps")
def layer_norm(x: Tensor, dims: int, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
    """Layer normalisation over the last `dims` dimensions."""
    return F.layer_norm(x, x.shape[x.dim() - dims :], w, b, eps).contiguous()


@_op("Tensor x, Tensor cos, Tensor sin")
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute x * cos + (-second half, first half of x) * sin, along the last dimension."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).contiguous()


@_op("Tensor gate, Tensor up")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute silu(gate) * up."""
    return meanings.swiglu(gate, up)


@_op(
    "Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool causal=False, float? scale=None",
)
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute softmax(q @ k.T * scale + mask) @ v, [batch, heads, sequence,
    size], as torch's own.
    """
    shared = bool(q.shape[-3] != k.shape[-3])  # heads of k and v that several of q share
    result: Tensor = F.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared
    )
    return result.contiguous()


@_op("Tensor x, Tensor? w, Tensor? b, Tensor mean, Tensor var, float eps")
def batch_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """Batch normalisation of inference: by the running mean and variance."""
    return F.batch_norm(x, mean, var, w, b, False, 0.0, eps)


@_op(
    "Tensor x, Tensor w, Tensor? b, int[] stride, int[] padding, int[] dilation, int groups, "
    'str activation=""',
)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str = "",
) -> Tensor:
    """Compute activation(convolution), not transposed, of one to three dimensions."""
    zeros = [0] * len(stride)
    done = torch.convolution(x, w, b, stride, padding, dilation, False, zeros, groups)
    return ACTIVATIONS[activation](done)


@_op(
    "Tensor x, Tensor w, Tensor? b, int[] stride, int[] padding, int[] dilation, int groups, "
    'str activation=""',
)
def conv_nhwc(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str = "",
) -> Tensor:
    """Compute `conv` of [batch, height, width, channels]; w stays [out, in, height, width]."""
    turned = x.permute(0, 3, 1, 2)
    done = conv(turned, w, b, stride, padding, dilation, groups, activation)
    return done.permute(0, 2, 3, 1).contiguous()
