# SPDX-License-Identifier: Apache-2.0
"""Which ONNX type holds a torch type, and in which type there are kernels for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# The numbers of onnx.TensorProto's types; onnx itself is imported only when a model is written.
ELEMENT: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 11,
    torch.float16: 10,
    torch.bfloat16: 16,
    torch.int64: 7,
    torch.int32: 6,
    torch.int16: 5,
    torch.int8: 3,
    torch.uint8: 2,
    torch.bool: 9,
}
NUMPY: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
# As torch's own CPU kernels do it: computed wide, rounded once at the end. A whole number that
# does not fit wraps around in the cast back.
COMPUTED_IN: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int16: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which operators on a type compute."""
    return COMPUTED_IN.get(dtype, dtype)
