# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of a call's arguments: what calls that take the same time have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def shape_of(value: Any) -> Hashable:
    """Of each tensor type and shape; plain values as they are, others by their kind."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if isinstance(value, (tuple, list)):
        return tuple([shape_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, shape_of(item)) for key, item in value.items()])
    if isinstance(value, (bool, float)):
        return repr(value)  # 1 == 1.0 == True, which make different calls
    if value is None or isinstance(value, (int, str, torch.dtype, torch.device)):
        return value
    return repr(value) if isinstance(value, slice) else type(value).__name__


def is_brief(name: str) -> bool:
    """Whether the lists of an operator are told by their ends."""
    return name.startswith("torch._foreach_")


def call_shapes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What calls of an operator that take the same time have in common."""
    if is_brief(name):
        return name, brief(args), brief(kwargs.values())
    return name, shape_of(args), named_shapes(kwargs) if kwargs else ()


def named_shapes(values: dict[str, Any]) -> Hashable:
    """Of arguments that are given by name."""
    return tuple([_Named((name, shape_of(value))) for name, value in values.items()])


class _Long(tuple[Any, ...]):
    """The length of a list, and the shapes of its first and last."""


def brief(values: Iterable[Any]) -> Hashable:
    """Of an optimizer's lists, which are the parameters of a model, the ends stand for the rest.
    They have no graph, and their numbers (a learning rate, what corrects a bias) change each step.
    """
    return tuple(
        [
            _Long((len(value), _brief(value[0]), _brief(value[-1])))
            if isinstance(value, (tuple, list)) and value
            else _brief(value)
            for value in values
        ]
    )


def _brief(value: Any) -> Hashable:
    return "float" if isinstance(value, float) else shape_of(value)


class _Named(tuple[Any, ...]):
    """A name and the shape of what is given by it."""


@lru_cache(maxsize=4096)
def text_of(shape: Any) -> str:
    """`float32(4, 128, 256), 2` of what `shape_of` made."""
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], torch.Size):
        return f"{str(shape[0]).removeprefix('torch.')}{tuple(shape[1])}".replace(",)", ")")
    if isinstance(shape, _Long):
        return f"[{shape[0]}: {text_of(shape[1])} … {text_of(shape[2])}]"
    if isinstance(shape, _Named):
        return f"{shape[0]}={text_of(shape[1])}"
    if isinstance(shape, tuple):
        return ", ".join(filter(None, map(text_of, shape)))
    return str(shape)


@lru_cache(maxsize=4096)
def tensor_texts(shape: Any, places: tuple[int, ...]) -> str:
    """The texts of some of the tensors, by their places in the order of `tensors()`."""
    texts = _tensors(shape)
    return ", ".join(texts[place] for place in places if place < len(texts))


def _tensors(shape: Any) -> list[str]:
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], torch.Size):
        return [text_of(shape)]
    return [text for part in shape for text in _tensors(part)] if isinstance(shape, tuple) else []
