# SPDX-License-Identifier: Apache-2.0
"""Reasons for a call to stay eager, for every compiler that reads ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from deeplink_vendors.cpu.onnx import (  # noqa: F401  # they fill the table
    decomposed,
    elementwise,
    fused,
    indexing,
    matmul,
    norm,
    operands,
    pooling,
    reduction,
    shape,
)
from deeplink_vendors.cpu.onnx.conversion import REASONS, conversions, is_empty
from deeplink_vendors.cpu.onnx.types import ELEMENT
from dicp.conversion import Conversions

TYPES = frozenset(ELEMENT) - {torch.float64}
# Ops that torch would decompose, and ONNX has as one operator.
KEPT = frozenset(
    target
    for target in conversions
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
)


def table() -> Conversions:
    """Return the conversions of ONNX, to which a compiler can add its own."""
    made = Conversions()
    for target in conversions:
        found = conversions.get(target)
        assert found is not None
        made.register_conversion(target)(found)
    return made


def supports(
    types: frozenset[torch.dtype] = TYPES,
    own: dict[Any, Callable[[fx.Node], str | None]] | None = None,
) -> Callable[[fx.Node], str | None]:
    """Return a function with the reason for a node to stay eager, for the types of a compiler."""
    reasons = REASONS | (own or {})

    def why_not(node: fx.Node) -> str | None:
        values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            if tensor.dtype not in types:
                return f"{str(tensor.dtype).removeprefix('torch.')} is not among its types"
        if any(is_empty(tensor) for tensor in tensors):
            return "a tensor without elements"
        if any(isinstance(leaf, torch.SymFloat | torch.SymBool) for leaf in tree_leaves(values)):
            return "a number that changes from call to call and is not whole"
        return reasons[node.target](node) if node.target in reasons else None

    return why_not
