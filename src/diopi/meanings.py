# SPDX-License-Identifier: Apache-2.0
"""Meanings of fused operators that several packages use as torch ops: plain torch functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square over the last dimension and multiply by w,
    in float32 or wider.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled.to(x.dtype) * w).contiguous()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute silu(gate) * up."""
    return (F.silu(gate) * up).contiguous()
