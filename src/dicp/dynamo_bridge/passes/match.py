# SPDX-License-Identifier: Apache-2.0
"""Patterns over a graph's calls: names for free operands, calls for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

COMMUTATIVE = {aten.add.Tensor, aten.mul.Tensor}
CHEAP = {aten._to_copy.default, torch.ops.prims.convert_element_type.default}


@dataclass(frozen=True)
class Free:
    """A free operand, a node or a plain value; one name is one value in the whole pattern."""

    name: str
    accepts: Callable[[Any], bool] = lambda value: True


@dataclass(frozen=True)
class Call:
    """A call of one of some targets, with exactly these arguments."""

    targets: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Either:
    """Several patterns; the first match counts."""

    patterns: tuple[Any, ...]


def call(target: Any, *args: Any, **kwargs: Any) -> Call:
    """Write a pattern as a call."""
    return Call((target,), args, tuple(kwargs.items()))


Bound = dict[str, Any]


def match(pattern: Call, root: fx.Node) -> Bound | None:
    """Match a pattern at a node and return the values of the free names.

    Inner nodes must not be used elsewhere, or they would be computed twice.
    """
    inside: list[fx.Node] = []
    bound = _fit(pattern, root, {}, inside)
    if bound is None:
        return None
    nodes = {*inside, root}
    for node in inside:
        if node is not root and node.target not in CHEAP and not set(node.users) <= nodes:
            return None
    return bound


def _fit(pattern: Any, value: Any, bound: Bound, inside: list[fx.Node]) -> Bound | None:
    if isinstance(pattern, Free):
        if pattern.name in bound:
            return bound if bound[pattern.name] is value else None
        return bound | {pattern.name: value} if pattern.accepts(value) else None
    if isinstance(pattern, Either):
        for one in pattern.patterns:
            mark = len(inside)
            found = _fit(one, value, bound, inside)
            if found is not None:
                return found
            del inside[mark:]
        return None
    if isinstance(pattern, Call):
        return _fit_call(pattern, value, bound, inside)
    if isinstance(pattern, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(pattern) != len(value):
            return None
        return _fit_all(tuple(pattern), tuple(value), bound, inside)
    return bound if type(value) is not fx.Node and value == pattern else None


def _fit_call(pattern: Call, value: Any, bound: Bound, inside: list[fx.Node]) -> Bound | None:
    if not isinstance(value, fx.Node) or value.target not in pattern.targets:
        return None
    if value.target not in CHEAP and value.kwargs != dict(pattern.kwargs):
        return None
    given = tuple(value.args)
    if len(given) != len(pattern.args):
        return None
    inside.append(value)
    orders = [given]
    if value.target in COMMUTATIVE:
        orders.append(given[::-1])
    for order in orders:
        mark = len(inside)
        found = _fit_all(pattern.args, order, bound, inside)
        if found is not None:
            return found
        del inside[mark:]
    return None


def _fit_all(
    patterns: tuple[Any, ...], values: tuple[Any, ...], bound: Bound, inside: list[fx.Node]
) -> Bound | None:
    for pattern, value in zip(patterns, values, strict=True):
        found = _fit(pattern, value, bound, inside)
        if found is None:
            return None
        bound = found
    return bound
