# SPDX-License-Identifier: Apache-2.0
"""The compiled graph as AOTAutograd calls it: constants kept up to date, results as traced."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from dicp.backend import Executable, Result
from dicp.dynamo_bridge.partition import Split
from dicp.dynamo_bridge.passes.freeze import Frozen
from dicp.dynamo_bridge.report import Record

Constants = Mapping[str, Tensor]
MAX_CHANGES = 3  # changes after which a weight is no longer a constant


@dataclass(frozen=True)
class Shape:
    """The properties of a partition that are needed without its graph."""

    name: str
    inputs: tuple[str, ...]
    constant: tuple[str, ...]  # names of the inputs that are constants
    results: tuple[Result, ...]
    devices: tuple[str, ...] = ("cpu",)  # device types of its inputs and results

    def own(self, constants: Constants) -> Constants:
        """Select this partition's constants among those of the whole graph."""
        return {name: constants[name] for name in self.constant}


@dataclass
class Part:
    """One partition; `load` creates its executable for given constants."""

    shape: Shape
    load: Callable[[Constants], Executable]
    executable: Executable
    gm: fx.GraphModule | None  # None when it came from the disk
    key: str = ""  # of its blob on disk

    @property
    def keep(self) -> tuple[int, ...]:
        """The numbers of its inputs that are not constants."""
        shape = self.shape
        return tuple(i for i, name in enumerate(shape.inputs) if name not in shape.constant)


class _Call(torch.nn.Module):
    """A partition inside of a split graph."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part, self.keep = part, part.keep

    def forward(self, *args: Any) -> Sequence[Any]:
        return self.part.executable([args[i] for i in self.keep])


@dataclass
class Program:
    """A whole compiled graph, as passed to AOTAutograd."""

    whole: Split
    parts: list[Part]
    frozen: Frozen
    numbers: Mapping[str, int]  # of the inputs, by their placeholders' names
    known: InitVar[Constants]  # initial constants
    constants: Callable[[Mapping[int, Tensor]], Constants]  # computed from the frozen inputs
    finish: Callable[[Sequence[Any]], list[Any]]
    record: Record | None = None
    rebuild: Callable[[Mapping[int, Tensor]], Program] | None = None  # with these inputs frozen
    check: Callable[[list[Any], Sequence[Any]], None] | None = None  # verify mode
    unstable_weights: set[int] = field(default_factory=set)  # frozen inputs that change repeatedly
    straight: list[str] | None = None  # the inputs of the partition that covers the whole graph
    _changes: Counter[int] = field(default_factory=Counter)
    _direct: bool = field(init=False)

    def __post_init__(self, known: Constants) -> None:
        if self.straight is None:
            self.straight = _straight(self.whole.gm, known)
        self._direct = self.straight is not None
        if self.straight is not None:
            self._inputs = [self.numbers[name] for name in self.straight]
            return
        for part in self.parts:
            self.whole.gm.set_submodule(part.shape.name, _Call(part))
        self._body: Callable[..., Sequence[Any]] = self.whole.gm.forward
        self._fill(known)

    def _fill(self, constants: Constants) -> None:
        names = [node.name for node in self.whole.gm.graph.find_nodes(op="placeholder")]
        self._inputs = [self.numbers[name] for name in names if name not in constants]
        self._given: list[Any] = [constants.get(name) for name in names]

    def refresh(self, args: Sequence[Any], changed: Sequence[int]) -> None:
        """Replace changed constants, and recompute those derived from them."""
        self.frozen.take({i: args[i] for i in self.frozen.tensors})
        constants = self.constants(self.frozen.tensors)
        for part in self.parts:
            part.executable = part.load(constants)
        if not self._direct:
            self._fill(constants)
        self._changes.update(changed)
        if self.rebuild is not None:
            self.unstable_weights = {
                i for i, times in self._changes.items() if times >= MAX_CHANGES
            }
        if self.record is not None:
            self.record.refreshed += 1

    def with_weights_as_inputs(self) -> Program:
        """Rebuild the program with repeatedly changed constants as inputs."""
        assert self.rebuild is not None
        rest = {i: t for i, t in self.frozen.tensors.items() if i not in self.unstable_weights}
        return self.rebuild(rest)

    def __call__(self, args: list[Any]) -> list[Any]:
        given = list(args) if self.check is not None else []
        # hot path
        changed = self.frozen.changed(args)
        if changed:
            self.refresh(args, changed)
        inputs = [args[i] for i in self._inputs]
        args.clear()  # boxed calling convention: the callee owns the list
        if self._direct:
            results = self.finish(self.parts[0].executable(inputs))
        else:
            rest = iter(inputs)
            values = [next(rest) if value is None else value for value in self._given]
            results = self.finish(self._body(*values))
        if self.check is not None:
            self.check(given, results)
        return results


def _straight(gm: fx.GraphModule, constants: Constants) -> list[str] | None:
    """Return the inputs of the partition that covers the whole graph; None if there is none."""
    calls = gm.graph.find_nodes(op="call_module")
    rest = [node for node in gm.graph.nodes if node.op == "call_function"]
    results = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
    if len(calls) != 1 or rest != results:
        return None
    if any(n.target is not operator.getitem or n.args != (calls[0], i) for i, n in enumerate(rest)):
        return None
    inputs = [node.name for node in calls[0].args if isinstance(node, fx.Node)]
    return [name for name in inputs if name not in constants]


Order = tuple[int, ...] | None


def orders_of(gm: fx.GraphModule) -> list[Order]:
    """Return the dimensions of each result by their strides, where they are not in order."""
    nodes: Any = gm.graph.output_node().args[0]
    return [_order(n.meta.get("val")) if isinstance(n, fx.Node) else None for n in nodes]


def finisher(orders: Sequence[Order]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that gives results the strides of the trace."""
    if not any(orders):
        return list

    def finish(results: Sequence[Any]) -> list[Any]:
        return [_ordered(r, order) for r, order in zip(results, orders, strict=True)]

    return finish


def _order(value: Any) -> Order:
    """Return the dimensions from the widest stride to the narrowest;
    None when they are in order.
    """
    if not isinstance(value, Tensor) or value.is_contiguous() or 0 in value.stride():
        return None
    strides = [int(stride) for stride in value.stride()]
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(len(strides))) else order


def _ordered(result: Any, order: Order) -> Any:
    if order is None or not isinstance(result, Tensor):
        return result
    turned = result.permute(order)
    if turned.is_contiguous():  # the result itself: it may be an input that was written
        return result
    back = sorted(range(len(order)), key=order.__getitem__)
    return turned.contiguous().permute(back)
