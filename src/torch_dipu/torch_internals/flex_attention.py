# SPDX-License-Identifier: Apache-2.0
"""flex_attention on the device: eager and compiled, forward and backward.

torch admits a list of devices, and its compiled kernels are Triton's, or C++ for the CPU without a
backward pass. Here a compiled graph has the operators of torch's own definition of flex_attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from deeplink.after_import import call_after_import

OPERATORS = {
    "flex_attention": "sdpa_dense",
    "flex_attention_backward": "sdpa_dense_backward",
}


def register() -> None:
    """Admit the device when torch's flex_attention is imported."""
    call_after_import("torch.nn.attention.flex_attention", _admit)
    call_after_import("torch._higher_order_ops.flex_attention", _trace_definitions)


def _admit(module: ModuleType) -> None:
    plain: Callable[..., None] = module._validate_device

    @functools.wraps(plain)
    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "dipu":
            plain(query, key, value)

    module._validate_device = _validate_device  # type: ignore[attr-defined]


def _trace_definitions(module: ModuleType) -> None:
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    for operator, definition in OPERATORS.items():
        found: Any = getattr(module, operator)
        plain = found.python_key_table.pop(FunctionalTensorMode)
        traced = _in_graph(plain, getattr(module, definition))
        found.py_impl(FunctionalTensorMode)(traced)


def _in_graph(plain: Callable[..., Any], definition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def trace(mode: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.device.type != "dipu":
            return plain(mode, query, *args, **kwargs)
        with mode:
            return definition(query, *args, **kwargs)

    return trace
