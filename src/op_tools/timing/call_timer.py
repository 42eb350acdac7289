# SPDX-License-Identifier: Apache-2.0
"""A call that is being timed: its marks, and hooks on the nodes of its backward pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from op_tools.core import gradients, tool_errors
from op_tools.core.call import Call, tensor_list
from op_tools.timing.aggregate import Group, text_of
from op_tools.timing.clock import Clock, Mark

Span = tuple[Mark, Mark]

# Nodes that return a view of a gradient and compute nothing. They are timed only in a call without
# other nodes.
_VIEWS = frozenset(f"{name}Backward0" for name in "T Transpose Permute Unsqueeze Alias".split())


@dataclass(slots=True)
class Row:
    """One call: marks of its start and end, and of those of each node of its backward pass."""

    id: int
    step: int
    backward: bool  # a kernel that the backward pass calls
    group: Group
    device: torch.device
    clock: Clock
    start: Mark
    end: Mark
    launched: int  # on the host's clock
    returned: int
    result: str  # types and shapes
    thread: int = field(default_factory=threading.get_ident)
    spans: list[Span] = field(default_factory=list)
    nodes: weakref.ref[Nodes] | None = None
    grad_inputs: str = ""  # types and shapes of the arguments with a gradient
    pending: bool = False  # a collective that is not finished
    forward_ms: float = 0.0
    backward_ms: float | None = None

    @property
    def complete(self) -> bool:
        """Whether no mark will be added: the backward pass is over, or its graph is deleted."""
        nodes = self.nodes() if self.nodes is not None else None
        return not self.pending and (nodes is None or nodes.pending <= 0)

    @property
    def ready(self) -> bool:
        """Whether the device has reached the last mark."""
        last = self.spans[-1][1] if self.spans else self.end
        return self.clock.ready(last)


@dataclass(slots=True, weakref_slot=True)
class Nodes:
    """The state that the hooks of one call share. The graph alone holds it."""

    row: Row
    pending: int  # nodes whose backward pass is not over
    spend: Callable[[int], None]  # counts nanoseconds that the tool itself uses
    closed: bool = False


def follow(
    call: Call, arguments: gradients.Arguments, result: Any, row: Row, spend: Callable[[int], None]
) -> None:
    """Time the backward pass of a call by hooks on its nodes."""
    part = gradients.part(call.sequence, arguments, tensor_list(result))
    if part is None:
        return
    places = {argument for entering in part.inputs.values() for _, argument in entering}
    # the parameters and buffers of a module are its first arguments
    own = sum(map(len, call.args[:2])) if call.level == "module" else 0
    row.grad_inputs = text_of([call.inputs[place] for place in sorted(places) if place >= own])
    timed = [node for node in part.nodes if node.name() not in _VIEWS] or part.nodes
    nodes = Nodes(row, len(timed), spend)
    row.nodes = weakref.ref(nodes)
    for node in timed:
        hooks = _Hooks(nodes)
        node.register_prehook(hooks.enter)
        node.register_hook(hooks.leave)


@dataclass(slots=True, eq=False)
class _Hooks:
    """The hooks of one node. They hold neither the call nor a tensor: no cycle in the graph."""

    nodes: Nodes
    start: Mark = None

    def enter(self, _grads: Any) -> None:
        try:
            if not self.nodes.closed:
                self.start = self.nodes.row.clock.mark()
        except Exception as error:  # a tool must not end the program
            tool_errors.add("OpTimeMeasure", self.nodes.row.group.kind.op, error)

    def leave(self, _inputs: Any, _outputs: Any) -> None:
        nodes = self.nodes
        try:
            if self.start is not None and not nodes.closed:
                end, entered = nodes.row.clock.mark(), perf_counter_ns()
                nodes.row.spans.append((self.start, end))
                nodes.pending -= 1
                self.start = None
                nodes.spend(perf_counter_ns() - entered)
        except Exception as error:  # a tool must not end the program
            tool_errors.add("OpTimeMeasure", nodes.row.group.kind.op, error)
