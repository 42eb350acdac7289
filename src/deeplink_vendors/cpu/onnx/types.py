# SPDX-License-Identifier: Apache-2.0
"""The ONNX type of each torch type, and the type for which there are kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# The numbers of onnx.TensorProto's types; onnx itself is imported only to write a model.
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
# As in torch's own CPU kernels: computed in a wide type, rounded once at the end. An integer that
# does not fit wraps around in the cast back.
COMPUTED_IN: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int16: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which operators on a type compute."""
    return COMPUTED_IN.get(dtype, dtype)
