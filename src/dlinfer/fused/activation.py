# SPDX-License-Identifier: Apache-2.0
"""Activations of gated layers: gate and value are the halves of the last dimension."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from diopi import meanings
from dlinfer.op import op


@op("Tensor x")
def silu_and_mul(x: Tensor) -> Tensor:
    """Compute silu(first half) * second half, along the last dimension."""
    gate, up = x.chunk(2, -1)
    return meanings.swiglu(gate, up)


@op('Tensor x, str approximate="none"')
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute gelu(first half) * second half, along the last dimension;
    approximate: none or tanh.
    """
    gate, up = x.chunk(2, -1)
    return (F.gelu(gate, approximate=approximate) * up).contiguous()
