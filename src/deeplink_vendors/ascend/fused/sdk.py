# SPDX-License-Identifier: Apache-2.0
"""torch_npu, and the types that its ops accept."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

torch_npu: Any = importlib.import_module("torch_npu")

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)


def same(kinds: tuple[torch.dtype, ...], *tensors: Tensor | None) -> bool:
    """Whether all tensors have one type, which is among `kinds`."""
    found = {t.dtype for t in tensors if t is not None}
    return len(found) == 1 and found <= set(kinds)


def rows(x: Tensor) -> Tensor:
    """Reshape [..., size] to [rows, size]."""
    return x.reshape(-1, x.shape[-1])
