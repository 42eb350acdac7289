# SPDX-License-Identifier: Apache-2.0
"""A call while it is timed: its marks, and hooks on the nodes of its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd.graph import Node

from op_tools.core import gradients, tool_errors
from op_tools.core.call import Call, Site, tensor_list
from op_tools.timing.clock import Clock, Mark

Span = tuple[Mark, Mark]

# Nodes whose gradient is a view of what comes in: nothing is computed, and they are not timed where
# a call has others. The second kind copies when it is the first to get a gradient of odd strides.
_IDLE = frozenset(f"{name}Backward0" for name in "T Transpose Permute Unsqueeze Alias".split())
_RESHAPE = frozenset(f"{name}Backward0" for name in "View UnsafeView ReshapeAlias".split())


@dataclass(slots=True)
class Row:
    """One call: when it started and ended, and the same of each node of its backward pass."""

    id: int
    name: str
    step: int
    module: str
    site: Site | None
    backward: bool  # a kernel that the backward pass calls
    device: torch.device
    clock: Clock
    given: Hashable  # shapes and types
    start: Mark
    thread: int = 0
    launched: int = 0  # on the host's clock
    returned: int = 0
    end: Mark = None
    result: Hashable = None
    spans: list[Span] = field(default_factory=list)
    nodes: weakref.ref[Nodes] | None = None
    grad_inputs: tuple[int, ...] = ()  # places among the arguments
    waiting: bool = False  # for a collective that goes on after its call
    forward_ms: float = 0.0
    backward_ms: float | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing will be added: its backward pass is over, or cannot come any more."""
        nodes = self.nodes() if self.nodes is not None else None
        return not self.waiting and (nodes is None or nodes.waiting <= 0)

    @property
    def ready(self) -> bool:
        """Whether the device has come to the last of its marks."""
        last = self.spans[-1][1] if self.spans else self.end
        return self.clock.ready(last)


@dataclass(slots=True, weakref_slot=True)
class Nodes:
    """What the hooks of one call's nodes share. Only they hold it, so it dies with the graph."""

    row: Row
    waiting: int
    spend: Callable[[int], None]  # nanoseconds of our own
    closed: bool = False


def follow(
    call: Call,
    given: gradients.Arguments,
    result: Any,
    row: Row,
    spend: Callable[[int], None],
) -> None:
    """Times the backward pass of a call by hooks on the nodes that it made."""
    part = gradients.part(call.sequence, given, tensor_list(result))
    if part is None:
        return
    places = {argument for entering in part.inputs.values() for _, argument in entering}
    # of a module, its parameters and buffers are arguments too
    own = sum(map(len, call.args[:2])) if call.level == "module" else 0
    row.grad_inputs = tuple(sorted(place - own for place in places if place >= own))
    ends = list(_stretches(part)) or [(node, node) for node in part.nodes]
    nodes = Nodes(row, len(ends), spend)
    row.nodes = weakref.ref(nodes)
    for first, last in ends:
        around = _Around(nodes)
        first.register_prehook(around.enter)
        last.register_hook(around.leave)


def _stretches(part: gradients.Part) -> Iterator[tuple[Node, Node]]:
    """The nodes that compute, as pairs of the first and the last of a row of them: autograd does a
    reshape and what comes after it one after the other.
    """
    joined: set[Node] = set()
    for node in part.outputs:
        if node.name() in _RESHAPE:
            following = node.next_functions[0][0]
            if following in part.nodes and following.name() not in _IDLE | _RESHAPE:
                joined.update((node, following))
                yield node, following
    for node in part.nodes:
        name = node.name()
        computes = name not in _IDLE and (name not in _RESHAPE or node in part.outputs)
        if computes and node not in joined:
            yield node, node


class _Around:
    """The hooks of one stretch. They hold neither the call nor a tensor: no cycle in the graph."""

    __slots__ = ("mark", "nodes", "start")

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.mark = nodes.row.clock.mark
        self.start: Mark = None

    def enter(self, _grads: Any) -> None:
        entered = perf_counter_ns()
        try:
            if not self.nodes.closed:
                self.nodes.spend(perf_counter_ns() - entered)
                self.start = self.mark()
        except Exception as error:  # a tool must not kill the program that it watches
            tool_errors.add("OpTimeMeasure", self.nodes.row.name, error)

    def leave(self, _inputs: Any, _outputs: Any) -> None:
        nodes = self.nodes
        try:
            if self.start is not None and not nodes.closed:
                end, entered = self.mark(), perf_counter_ns()
                nodes.row.spans.append((self.start, end))
                nodes.waiting -= 1
                self.start = None
                nodes.spend(perf_counter_ns() - entered)
        except Exception as error:  # as above
            tool_errors.add("OpTimeMeasure", nodes.row.name, error)
