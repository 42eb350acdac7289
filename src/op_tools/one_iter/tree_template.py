# SPDX-License-Identifier: Apache-2.0
"""The structure of a value, with slots instead of tensors."""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from op_tools.tensors.host_transfer import mapped

_SAFE = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, type, torch.dtype),
    *(torch.device, torch.layout, torch.memory_format, torch.Generator, nn.Module),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType),
)


class Slot:
    """The place of a tensor."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def flat(value: Any) -> list[Tensor]:
    """The tensors of a value, in the order of the slots."""
    found: list[Tensor] = []
    mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def emptied(value: Any) -> Any:
    """Replace the tensors of a value by slots. Mutable containers are copied; TypeError if that is
    impossible.
    """
    count = iter(range(2**31))

    def leaf(item: Any) -> Any:
        return Slot(next(count)) if isinstance(item, Tensor) else _kept(item)

    return mapped(value, leaf)


def _kept(item: Any) -> Any:
    if isinstance(item, _SAFE):
        return item
    try:
        return copy.deepcopy(item)
    except Exception as error:  # of a class of the program
        raise TypeError(f"a {type(item).__name__} cannot be given again: {error}") from None


def filled(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Fill the slots of a structure with tensors."""
    return mapped(structure, lambda leaf: tensors[leaf.place] if isinstance(leaf, Slot) else leaf)
