# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors that torch lacks and several packages need."""

from __future__ import annotations

import torch
from torch import Tensor


def bytes_of(tensor: Tensor) -> bytes:
    """Return a tensor's values in contiguous memory, in the order of its indices."""
    flat = tensor.detach().cpu().contiguous()
    # a single element may have any stride, and counts as contiguous
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
