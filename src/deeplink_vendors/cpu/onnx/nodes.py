# SPDX-License-Identifier: Apache-2.0
"""Operators and tensors of an ONNX graph, before a model is written of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor by its name, type and sizes; a size that is not known has a name."""

    name: str
    dtype: torch.dtype
    shape: list[int | str]


@dataclass(frozen=True)
class Node:
    """One operator."""

    kind: str
    inputs: list[str]
    outputs: tuple[str, ...]
    domain: str
    attributes: dict[str, Any]

    def renamed(self, names: Mapping[str, str]) -> Node:
        """Copy the operator with other names for some of its values."""
        inputs = [names.get(name, name) for name in self.inputs]
        return replace(self, inputs=inputs, outputs=tuple(names.get(n, n) for n in self.outputs))
