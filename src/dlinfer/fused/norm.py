# SPDX-License-Identifier: Apache-2.0
"""Normalisation by the root of the mean square, with the residual's sum where that is fused."""

from __future__ import annotations

from torch import Tensor

from diopi import meanings
from dlinfer.op import op


@op("Tensor x, Tensor weight, float eps")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over the root of its mean square along the last dimension, times weight [size]."""
    return meanings.rms_norm(x, weight, eps)


@op("Tensor x, Tensor residual, Tensor weight, float eps", "(Tensor, Tensor)")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm of x + residual, x + residual); neither argument is changed."""
    total = (x + residual).contiguous()
    return meanings.rms_norm(total, weight, eps), total
