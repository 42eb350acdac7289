# SPDX-License-Identifier: Apache-2.0
"""transformers: where a layer runs unchanged, because the ops have no gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def wants_gradients(x: Tensor) -> bool:
    """Whether gradients are required, which the ops lack."""
    return torch.is_grad_enabled() and x.requires_grad
