"""The table of conversions: from an ATen overload to what a vendor's compiler knows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx

Target = Callable[..., Any]  # an OpOverload, or a Python function such as operator.mul
Conversion = Callable[..., Any]  # (emitter, node, *args, **kwargs) -> value, or values


class Conversions:
    """What a backend maps; an op that is not in it stays eager.

        conversions = Conversions()
        register_conversion = conversions.register_conversion

        @register_conversion([aten.view.default, aten._unsafe_view])
        def view(emitter, node, x, size):
            return emitter.op("Reshape", x, size)

    A function gets the emitter's values in place of the graph's nodes, and everything else as it
    stands in the graph; `node` has the rest (`node.meta["val"]`). It may emit several operators.
    An op with several results returns a list of values.
    """

    def __init__(self) -> None:
        self._table: dict[Target, Conversion] = {}

    def register_conversion(
        self, *targets: Target | Iterable[Target]
    ) -> Callable[[Conversion], Conversion]:
        """Registers one function for one target, several, or a list; a packet means all of its
        overloads. What is registered later goes before.
        """

        def register(function: Conversion) -> Conversion:
            for target in _flat(targets):
                self._table[target] = function
            return function

        return register

    def get(self, target: Any) -> Conversion | None:
        """The function for a target; taking one of several results needs none."""
        return _getitem if target is operator.getitem else self._table.get(target)

    def functions(self) -> set[Conversion]:
        """All that is registered."""
        return set(self._table.values())

    def __contains__(self, target: Any) -> bool:
        return self.get(target) is not None

    def __iter__(self) -> Iterator[Target]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


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
