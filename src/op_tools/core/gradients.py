# SPDX-License-Identifier: Apache-2.0
"""The gradients of one call, of its results and its arguments, read from the unchanged graph.

No node is added: the nodes of a call lie between its results and its arguments, and hooks on them
observe the gradients. So the program computes the same values bit by bit, and the gradients of a
composite operator are those of its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from deeplink.i18n import _
from op_tools.core.call import Call, tensor_list

PART = _("the backward pass went through a part of it")
Value = Any  # the result of `read` for a gradient: a copy on the host, statistics, …
Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Gradients:
    """The gradients of results and arguments, in the order of `tensors()`; None: no gradient."""

    outputs: list[Value | None]
    inputs: list[Value | None]
    complete: bool  # False: the backward pass went through a part of the call only


@dataclass(slots=True, eq=False)
class Arguments:
    """The edges of the graph that end at the arguments, from before the call."""

    count: int
    leaves: dict[int, int]  # id of a leaf tensor -> its place among the arguments
    edges: dict[tuple[Node, int], int]

    @property
    def wanted(self) -> bool:
        """Whether an argument gets a gradient."""
        return bool(self.leaves or self.edges)


def arguments(call: Call) -> Arguments:
    """Find the edges before the call. A tensor that occurs twice counts at its first place.

    A kernel has none: the kernels of its gradient are calls of their own.
    """
    if call.level == "aten":
        return Arguments(0, {}, {})
    leaves: dict[int, int] = {}
    edges: dict[tuple[Node, int], int] = {}
    for at, tensor in enumerate(call.inputs):
        if tensor.requires_grad:
            node = tensor.grad_fn
            if node is None:
                leaves.setdefault(id(tensor), at)
            else:
                edges.setdefault((node, tensor.output_nr), at)
    return Arguments(len(call.inputs), leaves, edges)


@dataclass
class Part:
    """The nodes of one call, with the edges of its results and its arguments."""

    nodes: list[Node]
    outputs: dict[Node, Edges]  # node -> (place of the result, its output_nr)
    inputs: dict[Node, Edges]  # node -> (place in next_functions, argument)


def part(sequence: int, arguments: Arguments, result: list[Tensor]) -> Part | None:
    """The nodes of a call; None: it has none. `sequence`: autograd's count before the call."""
    region = Part([], {}, {})
    stack: list[Node] = []
    for place, tensor in enumerate(result):
        node = tensor.grad_fn
        if node is None or (node, tensor.output_nr) in arguments.edges:
            continue  # an argument that is returned has no node of this call
        region.outputs.setdefault(node, []).append((place, tensor.output_nr))
        stack.append(node)
    visited: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in visited or node._sequence_nr() < sequence:
            continue  # older than the call, and not reached through an argument
        visited.add(node)
        region.nodes.append(node)
        for place, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            argument = _argument(arguments, following, number)
            if argument is not None:
                region.inputs.setdefault(node, []).append((place, argument))
            elif following.next_functions:
                stack.append(following)
    return region if region.nodes else None


def _argument(arguments: Arguments, node: Node, number: int) -> int | None:
    leaf = getattr(node, "variable", None)  # of AccumulateGrad alone
    return arguments.edges.get((node, number)) if leaf is None else arguments.leaves.get(id(leaf))


@dataclass
class _Group:
    """The gradients of one call during a backward pass. Holds no tensor of the graph: no cycle."""

    done: Callable[[Gradients], None]
    gradients: Gradients
    pending: int  # nodes
    sums: dict[int, Tensor] = field(default_factory=dict)


_groups: dict[int, _Group] = {}
_lock = threading.Lock()


def watch(
    call: Call,
    arguments: Arguments,
    result: Any,
    read: Callable[[Tensor], Value],
    done: Callable[[Gradients], None],
    guard: Callable[..., Callable[..., None]] = lambda function: function,
) -> bool:
    """Call `done` once, when the backward pass has run through the call; False: the call has no
    nodes.

    `read` gets each gradient at once, which may be changed in place later. `guard` wraps the hooks,
    which must not raise into the backward pass.
    """
    results = tensor_list(result)
    region = part(call.sequence, arguments, results)
    if region is None:
        return False
    blank = Gradients([None] * len(results), [None] * arguments.count, True)
    group = _Group(done, blank, len(region.nodes))
    for node in region.nodes:
        hooks = _Hooks(group, region.outputs.get(node, []), region.inputs.get(node, []), read)
        if hooks.leaving:
            node.register_prehook(guard(hooks.before))
        node.register_hook(guard(hooks.after))
    return True


@dataclass(slots=True, eq=False)
class _Hooks:
    """The hooks of one node."""

    group: _Group
    leaving: Edges
    entering: Edges
    read: Callable[[Tensor], Value]

    def before(self, grad_outputs: tuple[Tensor | None, ...]) -> None:
        for place, number in self.leaving:
            gradient = grad_outputs[number]
            if gradient is not None:
                self.group.gradients.outputs[place] = self.read(gradient)

    def after(self, grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        sums = self.group.sums
        for place, argument in self.entering:
            gradient = grad_inputs[place]
            if gradient is not None:
                before = sums.get(argument)
                sums[argument] = gradient.detach() if before is None else before + gradient.detach()
                self.group.gradients.inputs[argument] = self.read(sums[argument])
        _count_down(self.group)


def _count_down(group: _Group) -> None:
    with _lock:
        group.pending -= 1
        over = group.pending == 0
        if over:
            _groups.pop(id(group), None)
        elif group.pending > 0:
            _groups[id(group)] = group
    if over:
        group.sums.clear()
        group.done(group.gradients)


def finish() -> None:
    """Call `done` for the calls with nodes that the backward pass, now over, did not run."""
    if not _groups:
        return
    with _lock:
        partial = list(_groups.values())
        _groups.clear()
    for group in partial:
        group.pending = -1
        group.sums.clear()
        group.done(Gradients(group.gradients.outputs, group.gradients.inputs, False))


def own_graph() -> AbstractContextManager[None]:
    """Switch off the program's hooks on saved tensors (a checkpoint's, which counts them).

    Graphs made inside the block save the tensors themselves.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()  # hot path: no hooks
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
