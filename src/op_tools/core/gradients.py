# SPDX-License-Identifier: Apache-2.0
"""The gradients of one call: of its results and of its *arguments*, read from the graph as it is.

Nothing is put into the graph: the nodes that the call made are found between its results and its
arguments, and hooks on them hear what flows in and out. So the program computes what it computes
without us, bit by bit, and a composite operator's gradients are those of its arguments.
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

from op_tools.core.call import Call, tensor_list

PART = "the backward pass went through a part of it"
Taken = Any  # what `take` made of a gradient: a copy on the host, statistics, …
Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Gradients:
    """Of each result and each argument, in the order of `tensors()`; None where none came."""

    outputs: list[Taken | None]
    inputs: list[Taken | None]
    complete: bool  # False: the backward pass went through a part of the call only


@dataclass(slots=True, eq=False)
class Arguments:
    """Where the arguments hung in the graph before the call: it may write them in place."""

    count: int
    leaves: dict[int, int]  # id of a leaf tensor -> its place among the arguments
    edges: dict[tuple[Node, int], int]

    @property
    def wanted(self) -> bool:
        return bool(self.leaves or self.edges)


def arguments(call: Call) -> Arguments:
    """To be taken before the call. A tensor that is given twice counts at its first place.

    Of a kernel there are none: the kernels of its gradient are calls of their own.
    """
    if call.level == "aten":
        return Arguments(0, {}, {})
    leaves: dict[int, int] = {}
    edges: dict[tuple[Node, int], int] = {}
    for at, tensor in enumerate(call.given):
        if tensor.requires_grad:
            node = tensor.grad_fn
            if node is None:
                leaves.setdefault(id(tensor), at)
            else:
                edges.setdefault((node, tensor.output_nr), at)
    return Arguments(len(call.given), leaves, edges)


@dataclass
class Part:
    """The nodes that one call made: where its results leave them, where its arguments enter."""

    nodes: list[Node]
    outputs: dict[Node, Edges]  # node -> (place of the result, its output_nr)
    inputs: dict[Node, Edges]  # node -> (place in next_functions, argument)


def part(sequence: int, given: Arguments, result: list[Tensor]) -> Part | None:
    """The part of the graph that a call made, when autograd's count was this; None when it made
    none.
    """
    found = Part([], {}, {})
    stack: list[Node] = []
    for place, tensor in enumerate(result):
        node = tensor.grad_fn
        if node is None or (node, tensor.output_nr) in given.edges:
            continue  # an argument that was passed through has no backward of this call
        found.outputs.setdefault(node, []).append((place, tensor.output_nr))
        stack.append(node)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or node._sequence_nr() < sequence:
            continue  # older than the call: reached through something that is no argument
        seen.add(node)
        found.nodes.append(node)
        for place, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            argument = _argument(given, following, number)
            if argument is not None:
                found.inputs.setdefault(node, []).append((place, argument))
            elif following.next_functions:
                stack.append(following)
    return found if found.nodes else None


def _argument(given: Arguments, node: Node, number: int) -> int | None:
    leaf = getattr(node, "variable", None)  # of AccumulateGrad alone
    return given.edges.get((node, number)) if leaf is None else given.leaves.get(id(leaf))


@dataclass
class Group:
    """One call's gradients while they come in. Holds no tensor of the graph: no cycle, no leak."""

    done: Callable[[Gradients], None]
    gradients: Gradients
    waiting: int
    sums: dict[int, Tensor] = field(default_factory=dict)


_groups: dict[int, Group] = {}
_lock = threading.Lock()


def watch(
    call: Call,
    given: Arguments,
    result: Any,
    take: Callable[[Tensor], Taken],
    done: Callable[[Gradients], None],
    guard: Callable[..., Callable[..., None]] = lambda function: function,
) -> bool:
    """Calls `done` once, when the backward pass has been through the call; False: it never will.

    `take` is applied at once to what flows: a gradient may be changed in place later. `guard` wraps
    what runs inside the backward pass, which must not raise into it.
    """
    results = tensor_list(result)
    made = part(call.sequence, given, results)
    if made is None:
        return False
    count = len(results)
    blank = Gradients([None] * count, [None] * given.count, True)
    group = Group(done, blank, len(made.nodes))
    for node in made.nodes:
        hooks = _Hooks(group, made.outputs.get(node, []), made.inputs.get(node, []), take)
        if hooks.leaving:
            node.register_prehook(guard(hooks.before))
        node.register_hook(guard(hooks.after))
    return True


@dataclass(slots=True, eq=False)
class _Hooks:
    """Hears what flows into a node and out of it."""

    group: Group
    leaving: Edges
    entering: Edges
    take: Callable[[Tensor], Taken]

    def before(self, grad_outputs: tuple[Tensor | None, ...]) -> None:
        for place, number in self.leaving:
            gradient = grad_outputs[number]
            if gradient is not None:
                self.group.gradients.outputs[place] = self.take(gradient)

    def after(self, grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        sums = self.group.sums
        for place, argument in self.entering:
            gradient = grad_inputs[place]
            if gradient is not None:
                before = sums.get(argument)
                sums[argument] = gradient.detach() if before is None else before + gradient.detach()
                self.group.gradients.inputs[argument] = self.take(sums[argument])
        count_down(self.group)


def count_down(group: Group) -> None:
    """One of its nodes is through."""
    with _lock:
        group.waiting -= 1
        over = group.waiting == 0
        if over:
            _groups.pop(id(group), None)
        elif group.waiting > 0:
            _groups[id(group)] = group
    if over:
        group.sums.clear()
        group.done(group.gradients)


def finish() -> None:
    """At the end of a backward pass: the calls that it went through in part are told so."""
    left: list[Group] = []
    if _groups:
        with _lock:
            left = list(_groups.values())
            _groups.clear()
    for group in left:
        group.waiting = -1
        group.sums.clear()
        group.done(Gradients(group.gradients.outputs, group.gradients.inputs, False))


def own_graph() -> AbstractContextManager[None]:
    """Graphs made inside the block keep their tensors themselves.

    The program's own saved-tensor hooks (a checkpoint's, which counts saved tensors) do not run.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()  # hot path: there are none
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda kept: kept)
