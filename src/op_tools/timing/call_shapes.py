# SPDX-License-Identifier: Apache-2.0
"""Texts of the types and shapes of values: calls with equal texts are timed as one kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def text_of(value: Any) -> str:
    """Types and shapes of tensors, plain values, types of others: `float32(4, 128, 256), 2`."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{tuple(value.shape)}".replace(",)", ")")
    if isinstance(value, (tuple, list)):
        return ", ".join(filter(None, map(text_of, value)))
    if isinstance(value, dict):
        return ", ".join(f"{name}={text_of(item)}" for name, item in value.items())
    if value is None or isinstance(
        value, (bool, int, float, str, slice, torch.dtype, torch.device)
    ):
        return str(value)
    return type(value).__name__


def is_brief(name: str) -> bool:
    """Whether the text of an operator's lists has their first and last items only."""
    return name.startswith("torch._foreach_")


def call_text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of a call's arguments."""
    if not is_brief(name):
        return text_of((*args, kwargs))
    return ", ".join(map(_brief, (*args, *kwargs.values())))


def _brief(value: Any) -> str:
    """The text of an argument of an optimizer, whose numbers (a learning rate, the bias correction)
    change in each step.
    """
    if isinstance(value, (tuple, list)) and value:
        return f"[{len(value)}: {_brief(value[0])} … {_brief(value[-1])}]"
    return "float" if isinstance(value, float) else text_of(value)
