# SPDX-License-Identifier: Apache-2.0
"""The table of conversions: from an ATen overload to operators of a vendor's compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeplink.errors import DeeplinkError

Target = Callable[..., Any]  # an OpOverload, or a Python function such as operator.mul
Conversion = Callable[..., Any]  # (emitter, node, *args, **kwargs) -> value, or values


# Graphs contain every view as `reshape`: a conversion of another view overload handles it, too.
SPELLINGS: dict[Target, tuple[Target, ...]] = {
    torch.ops.aten.reshape.default: (
        torch.ops.aten.view.default,
        torch.ops.aten._unsafe_view.default,
    ),
}


class NotTaken(DeeplinkError):
    """A conversion cannot express this call; the text is the reason."""


class Conversions:
    """The ops that a backend converts; an op that is not in the table stays eager.

        conversions = Conversions()
        register_conversion = conversions.register_conversion

        @register_conversion([aten.view.default, aten._unsafe_view])
        def view(emitter, node, x, size):
            return emitter.op("Reshape", x, size)

    A function receives the emitter's values for the graph's nodes, and all other arguments
    unchanged; `node` has further properties (`node.meta["val"]`). It may emit several operators. An
    op with several results returns a list of values.
    """

    def __init__(self) -> None:
        self._table: dict[Target, Conversion] = {}

    def register_conversion(
        self, *targets: Target | Iterable[Target]
    ) -> Callable[[Conversion], Conversion]:
        """Register one function for one target, several, or a list; a packet means all of its
        overloads. A later registration overrides an earlier one.
        """

        def register(function: Conversion) -> Conversion:
            for target in _flat(targets):
                self._table[target] = function
            return function

        return register

    def get(self, target: Any) -> Conversion | None:
        """Return the function for a target or an equivalent view; a getitem needs none."""
        if target is operator.getitem:
            return _getitem
        names = (target, *SPELLINGS.get(target, ()))
        return next((self._table[name] for name in names if name in self._table), None)

    def why_not(
        self, emitter: Any, node: fx.Node, finish: Callable[[], Any] = lambda: None
    ) -> str | None:
        """Return why a node cannot be converted, or None, by converting it alone.

        The conversion uses its own emitter, whose method `of` returns a value for a tensor; then
        `finish` is called.
        """
        try:
            given = {n: _input(emitter, n) for n in node.all_input_nodes}
            args = fx.map_arg(node.args, given.__getitem__)
            kwargs = fx.map_arg(node.kwargs, given.__getitem__)
            convert = self.get(node.target)
            assert convert is not None, node.target
            convert(emitter, node, *args, **kwargs)
            finish()
        except NotTaken as reason:
            return reason.message
        except Exception as error:  # any error is a valid reason: it is counted and reported
            return f"{type(error).__name__}: {error}"
        return None

    def functions(self) -> set[Conversion]:
        """Return all registered functions."""
        return set(self._table.values())

    def __contains__(self, target: Any) -> bool:
        return self.get(target) is not None

    def __iter__(self) -> Iterator[Target]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _input(emitter: Any, node: fx.Node) -> Any:
    several = node.meta["val"]
    if not isinstance(several, list | tuple):
        return emitter.input(node)
    return [emitter.of(value) for value in several]


def _getitem(emitter: Any, node: fx.Node, values: Any, index: int) -> Any:
    return values[index]


def _flat(targets: Iterable[Any]) -> Iterator[Target]:
    for target in targets:
        if isinstance(target, torch._ops.OpOverloadPacket):
            yield from (getattr(target, name) for name in target.overloads())
        elif isinstance(target, Iterable):
            yield from _flat(target)
        else:
            yield target


def averages(size: int, count: int) -> Tensor:
    """Return the weights [count, size] of an adaptive average pool from
    `size` to `count` pixels.
    """
    weights = torch.zeros(count, size, dtype=torch.float64)
    for row in range(count):
        first, last = row * size // count, -(-(row + 1) * size // count)
        weights[row, first:last] = 1 / (last - first)
    return weights


def pairs(*parts: Sequence[int]) -> list[list[int]]:
    """The numbers of an image's two dimensions: torch gives two, or one for both."""
    return [list(part) * (3 - len(part)) for part in parts]


def check_max_pool(node: fx.Node, dim: int, dilation: Sequence[int], ceil_mode: bool) -> None:
    """Raise NotTaken for a max pool that is not the plain one of images, or whose indices are read.

    A compiler gives the values alone.
    """
    reads_indices = any(user.args[1] == 1 for user in node.users if user.users)
    if dim != 4 or ceil_mode or set(dilation) != {1} or reads_indices:
        raise NotTaken("not of four dimensions, rounded up, dilated, or its indices are used")
