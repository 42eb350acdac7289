# SPDX-License-Identifier: Apache-2.0
"""Tensors in a file of the safetensors format: a header in JSON, then the bytes.

Implemented here because it is small, and a chip's machine may have nothing but torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.tensors import bytes_of

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file of these tensors, which must be on the CPU."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, at = [], 0
    for name, tensor in tensors.items():
        data = bytes_of(tensor)
        shape, end = list(tensor.shape), at + len(data)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [at, end]}
        parts.append(data)
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(parts)


class File:
    """A file from which tensors are read one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _opened(self) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        raw = np.memmap(self._path, np.uint8, "r")
        size = int.from_bytes(raw[:8].tobytes(), "little")
        try:
            header = json.loads(raw[8 : 8 + size].tobytes())
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise DeeplinkError(f"{self._path} is no safetensors file.") from None
        return header, raw[8 + size :]

    def get(self, name: str) -> Tensor:
        """Read one tensor by its name."""
        header, data = self._opened
        entry = header[name]
        begin, end = entry["data_offsets"]
        dtype = TYPES[entry["dtype"]]
        if not math.prod(entry["shape"]):
            return torch.empty(entry["shape"], dtype=dtype)
        found = torch.from_numpy(data[begin:end].copy())
        return found.view(dtype).reshape(entry["shape"])
