# SPDX-License-Identifier: Apache-2.0
"""The properties of an op's results: shapes, strides and types,
by running its meaning without data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

HOST = torch.device("cpu")  # types are those of the CPU's results: the meta device's differ


class Described(NamedTuple):
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, device: torch.device) -> Tensor:
        """Create an uninitialised tensor of this description."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def describe(tensor: Tensor) -> Described:
    return Described(tuple(tensor.shape), tensor.stride(), tensor.dtype)


Results = tuple[Any, ...]  # Described for a tensor, a tuple of them for a list, else None
Meaning = Callable[..., Any]


def results(meaning: Meaning, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Results | None:
    """Return a description of each result; None when they depend on values (nonzero, unique, …).

    Cached by the descriptions of the arguments.
    """
    try:
        return _remembered(meaning, key(args), tuple((k, key(v)) for k, v in kwargs.items()))
    except TypeError:  # an argument that cannot be a key: a generator
        return _results(meaning, args, dict(kwargs))


def key(value: Any) -> Hashable:
    """Return a cache key: the description of tensors, the value of plain values."""
    if isinstance(value, Tensor):
        return Described(value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return ("sequence", *map(key, value))
    if value is None or isinstance(value, (str, torch.dtype, torch.memory_format)):
        return value
    if isinstance(value, (bool, int, float, complex)):
        return (type(value), value)  # True, 1 and 1.0 are one key to a dict
    raise TypeError(type(value).__name__)


@lru_cache(maxsize=4096)
def _remembered(
    meaning: Meaning, args: Any, kwargs: tuple[tuple[str, Hashable], ...]
) -> Results | None:
    return _results(meaning, _unkey(args), {name: _unkey(value) for name, value in kwargs})


def _unkey(value: Any) -> Any:
    """Create arguments without data from `key`."""
    if isinstance(value, Described):
        return value
    if isinstance(value, tuple) and value and value[0] == "sequence":
        return [_unkey(item) for item in value[1:]]
    if isinstance(value, tuple):
        return value[1]
    return value


def _results(meaning: Meaning, args: Any, kwargs: dict[str, Any]) -> Results | None:
    with _no_data():
        try:
            found = meaning(*map(without_data, args), **without_data(kwargs))
        except Exception:  # whatever a meaning raises for invalid arguments or for missing values
            return None
    single = isinstance(found, Tensor) or not isinstance(found, (tuple, list))
    return tuple(_described(one) for one in ((found,) if single else found))


def explain(meaning: Meaning, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise the meaning's error for arguments without results."""
    with _no_data():
        meaning(*map(without_data, args), **without_data(dict(kwargs)))


@contextmanager
def _no_data() -> Iterator[None]:
    before, _LOG.disabled = _LOG.disabled, True  # it logs a page for each invalid argument
    try:
        # active modes would see these tensors, and mistake them for real ones
        with _disable_current_modes(), torch.no_grad(), FakeTensorMode():
            yield
    finally:
        _LOG.disabled = before


_LOG = logging.getLogger("torch._subclasses.fake_tensor")


def without_data(value: Any) -> Any:
    """Return a value without data, within a FakeTensorMode; generators are removed."""
    if isinstance(value, dict):
        return {name: without_data(one) for name, one in value.items()}
    if isinstance(value, Described):
        return value.empty(HOST)
    if isinstance(value, Tensor):
        return describe(value).empty(HOST)
    if isinstance(value, (list, tuple)):
        return [without_data(item) for item in value]
    if isinstance(value, torch.Generator):
        return None
    return value


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return describe(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return None
