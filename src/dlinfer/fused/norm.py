# SPDX-License-Identifier: Apache-2.0
"""Normalisation by the root mean square, with or without a fused residual sum."""

from __future__ import annotations

from torch import Tensor

from diopi import meanings
from dlinfer.op import op


@op("Tensor x, Tensor weight, float eps")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square over the last dimension and multiply by weight [size]."""
    return meanings.rms_norm(x, weight, eps)


@op("Tensor x, Tensor residual, Tensor weight, float eps", "(Tensor, Tensor)")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (rms_norm of x + residual, x + residual); the arguments are not changed."""
    total = (x + residual).contiguous()
    return meanings.rms_norm(total, weight, eps), total
