# SPDX-License-Identifier: Apache-2.0
"""Norms, the gated activation and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from deeplink_vendors.ascend.fused.sdk import FLOATS, HALF, same, torch_npu
from diopi.resolve import limited


def _normal(x: Tensor, weight: Tensor) -> bool:
    return same(FLOATS, x, weight) and x.dim() >= 2 and x.numel() > 0


def _added(x: Tensor, residual: Tensor, weight: Tensor) -> bool:
    return _normal(x, weight) and same(FLOATS, x, residual) and x.shape == residual.shape


@limited(_normal)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """npu_rms_norm: (the norm, what its gradient needs)."""
    normed: Tensor = torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]
    return normed


@limited(_added)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """npu_add_rms_norm: (the norm, what its gradient needs, the sum)."""
    normed, _, total = torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)
    return normed, total


@limited(lambda x, weight: _normal(x, weight) and x.dtype in HALF)
def rms_norm_w8a8(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """npu_rms_norm, then npu_dynamic_quant, whose scale has no last dimension."""
    numbers, scale = torch_npu.npu_dynamic_quant(torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0])
    return numbers, scale.unsqueeze(-1)


@limited(lambda x, residual, weight: _added(x, residual, weight) and x.dtype in HALF)
def add_rms_norm_w8a8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """npu_add_rms_norm, then npu_dynamic_quant."""
    normed, _, total = torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)
    numbers, scale = torch_npu.npu_dynamic_quant(normed)
    return numbers, scale.unsqueeze(-1), total


@limited(lambda x: x.dtype in FLOATS and x.numel() > 0)
def silu_and_mul(x: Tensor) -> Tensor:
    """npu_swiglu."""
    gated: Tensor = torch_npu.npu_swiglu(x, dim=-1)
    return gated


def _turnable(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    return (
        same(FLOATS, q, k, cos, sin)
        and q.numel() > 0
        and cos.shape[1] < 896
        and max(q.shape[1], k.shape[1]) < 1000
    )


@limited(_turnable)
def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """npu_rotary_mul for the rotated part: one batch, [1, tokens, heads, size], angles [1, tokens,
    1,
    size].
    """
    mode = "interleave" if interleaved else "half"
    angles = [t[None, :, None, :] for t in (cos, sin)]
    turned = cos.shape[1]

    def one(x: Tensor) -> Tensor:
        part: Tensor = torch_npu.npu_rotary_mul(
            x[None, ..., :turned].contiguous(), *angles, rotary_mode=mode
        )[0]
        return torch.cat((part, x[..., turned:]), -1) if turned < x.shape[-1] else part

    return one(q), one(k)
