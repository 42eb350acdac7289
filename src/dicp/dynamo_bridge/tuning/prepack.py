# SPDX-License-Identifier: Apache-2.0
"""Weights of linears in the memory layout of the product, for a compiler that takes dynamo's graph.

torch stores a weight as [out, in], and multiplies by its transpose; the product with [in, out] in
memory is up to 1.3 times as fast on a CPU. For few rows, reading the weights determines the time:
`dicp.few_rows` reads them in this layout, and faster. For more rows the speed is measured: torch
reorders the weights in each call, and its speed depends on the processor (MKL is slower on others
than Intel's). Linears that share an input (q/k/v, gate/up) become one product.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import mmap
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from dicp import torch_internals
from dicp.dynamo_bridge.passes.freeze import Frozen, add_placeholder
from dicp.dynamo_bridge.run import MAX_CHANGES
from dicp.dynamo_bridge.tuning.autotune import seconds

FEW = 32  # rows
MANY = 256  # rows up to which the op of few rows may be faster
SAMPLE = 64 << 20  # bytes of weights that are multiplied for the measurement: more than caches hold
ROUNDS, CLEAR = 4, 1.05
LINE = 16  # floats in a cache line
LARGE = 4 << 20  # bytes of weights: smaller ones fit a cache, and gain nothing

Group = tuple[int, ...]  # the numbers of the inputs that form one weight
Run = Callable[..., Any]


class Packed:
    """Runs a graph with packed weights; packs them again when the program changes them."""

    def __init__(self, run: Run, eager: Run, packing: Packs, weights: Mapping[int, Tensor]):
        self._run, self._eager, self._packing = run, eager, packing
        self._frozen = Frozen({i: weights[i] for group in packing.groups for i in group})
        self._made = packing.made(self._frozen.tensors)
        self._changes = 0

    def __call__(self, *args: Any) -> Any:
        # hot path
        if self._frozen.changed(args):
            self._changes += 1
            if self._changes <= MAX_CHANGES:
                self._frozen.take({i: args[i] for i in self._frozen.tensors})
                self._made = self._packing.made(self._frozen.tensors)
        if self._changes > MAX_CHANGES:  # packed again and again, it would be slower
            return self._eager(*args)
        return self._run(*(args[i] for i in self._packing.kept), *self._made)


@dataclass
class Packs:
    """Packed weights in place of inputs: the sources of each, and the remaining inputs."""

    groups: list[Group] = field(default_factory=list)
    few: list[bool] = field(default_factory=list)  # which are for the op of few rows
    kept: list[int] = field(default_factory=list)

    def made(self, weights: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the packed weights."""
        with torch_internals.without_modes(), torch.no_grad():
            parts = [[weights[i] for i in group] for group in self.groups]
            rooms = _buffers([sum(w.numel() for w in each) for each in parts])
            return [_joined(*made) for made in zip(parts, rooms, self.few, strict=True)]


class Packing(Packs):
    """A graph with packed weights as its last inputs.

    `product` returns the op for few rows, if there is a kernel; called when it may be faster.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        weights: Mapping[int, Tensor],
        product: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__()
        self.gm = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        places = list(self.gm.graph.find_nodes(op="placeholder"))
        together = _together(places, weights)
        read = sum(_bytes(node) for group in together if _rows(group[0]) for node in group)
        op = product() if read >= LARGE else None
        self.lacks = read >= LARGE and op is None  # the kernel for few rows
        many = [group for group in together if _rows(group[0]) > FEW]
        values = dict(zip(places, map(weights.get, range(len(places))), strict=True))
        wins = bool(op and many) and _wins(op, _products(many, values))
        for linears in together:
            rows = _rows(linears[0])
            self._pack(linears, places, op if rows and (rows <= FEW or wins) else None)
        unused = {i for group in self.groups for i in group}
        for number in unused:
            self.gm.graph.erase_node(places[number])
        self.kept = [i for i in range(len(places)) if i not in unused]
        self.gm.graph.lint()
        self.gm.recompile()

    def _pack(self, linears: list[fx.Node], places: list[fx.Node], few: Any) -> None:
        first = linears[0]
        x = _operands(first)[0]
        weights = [_operands(node)[1] for node in linears]
        place = add_placeholder(self.gm, f"packed_{len(self.groups)}")
        self.groups.append(tuple(places.index(weight) for weight in weights))
        self.few.append(few is not None)
        with self.gm.graph.inserting_before(first):
            given = (x, place, True) if few and _rows(first) > FEW else (x, place)
            wide = self.gm.graph.call_function(few or torch.matmul, given)
            sizes = [weight.meta["example_value"].shape[0] for weight in weights]
            parts = self.gm.graph.call_function(torch.split, (wide, sizes, -1))
        for number, node in enumerate(linears):
            bias = _operands(node)[2]
            with self.gm.graph.inserting_before(node):
                args = (parts, number)
                made = (
                    self.gm.graph.call_function(operator.getitem, args)
                    if len(linears) > 1
                    else wide
                )
                if bias is not None:
                    made = self.gm.graph.call_function(torch.add, (made, bias))
            made.meta = dict(node.meta)  # torch's cache accepts no method without an example
            node.replace_all_uses_with(made)
            self.gm.graph.erase_node(node)
        if len(linears) == 1:
            self.gm.graph.erase_node(parts)

    def inputs(self, given: Sequence[Any], weights: Mapping[int, Tensor]) -> list[Any]:
        """Return the inputs of the packed graph for inputs of the graph: real or fake."""
        mode = torch_internals.fake_mode_for(given)
        fakes = any(isinstance(x, torch_internals.FakeTensor) for x in given)
        made = self.made(weights)
        if fakes:  # weights have fixed sizes
            made = [mode.from_tensor(tensor, static_shapes=True) for tensor in made]
        return [*(given[i] for i in self.kept), *made]


def _joined(weights: list[Tensor], room: Tensor, few: bool) -> Tensor:
    """Return [in, out] in memory; the op of few rows sees [out, in]."""
    whole = torch.cat([weight.t() for weight in weights], 1) if weights[1:] else weights[0].t()
    made = room.view(whole.shape).copy_(whole)
    return made.t() if few else made


def _buffers(sizes: list[int]) -> list[Tensor]:
    """Allocate consecutive buffers of floats in large pages, so that prefetching at the end of one
    reads the start of the next.
    """
    ends = [0, *itertools.accumulate(-(-size // LINE) * LINE for size in sizes)]
    if not ends[-1] or not hasattr(mmap, "MADV_HUGEPAGE"):
        return [torch.empty(size) for size in sizes]
    memory = mmap.mmap(-1, 4 * ends[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.float32)  # owns the memory
    return [whole[at : at + size] for at, size in zip(ends, sizes, strict=False)]


def _bytes(linear: fx.Node) -> int:
    weight = _operands(linear)[1].meta["example_value"]
    return int(weight.numel() * weight.element_size())


def _rows(linear: fx.Node) -> int:
    """Return the rows of a linear, as far as known, where `few_rows` may compute it; else 0."""
    x, made = _operands(linear)[0].meta["example_value"], linear.meta["example_value"]
    sizes = list(x.shape[:-1])
    known = math.prod(size for size in sizes if isinstance(size, int))  # others may be 1
    fits = known <= (FEW if any(not isinstance(size, int) for size in sizes) else MANY)
    return known if fits and x.dtype == made.dtype == torch.float32 else 0


Products = list[tuple[Tensor, Tensor]]


def _products(groups: list[list[fx.Node]], weights: Mapping[fx.Node, Any]) -> Products:
    """Return products of some groups with packed weights and random x, for a measurement."""
    found: Products = []
    with torch_internals.without_modes(), torch.no_grad():
        for group in groups:
            parts = [weights[_operands(node)[1]] for node in group]
            size = sum(part.numel() for part in parts)
            rows, inner = _rows(group[0]), parts[0].shape[1]
            x = torch.linspace(-1, 1, rows * inner).view(rows, inner)
            found.append((x, _joined(parts, _buffers([size])[0], few=True)))
            if sum(4 * weight.numel() for _, weight in found) >= SAMPLE:
                break
    return found


def _wins(op: Any, products: Products) -> bool:
    """Whether an op multiplies clearly faster than torch on this machine, measured alternately."""
    ours, theirs = [], []
    with torch_internals.without_modes(), torch.no_grad():
        for _ in range(ROUNDS):
            ours.append(seconds(lambda: [op(x, weight, True) for x, weight in products]))
            theirs.append(seconds(lambda: [torch.matmul(x, w.t()) for x, w in products]))
    return min(theirs) > CLEAR * min(ours)


def _together(places: list[fx.Node], weights: Mapping[int, Tensor]) -> list[list[fx.Node]]:
    """Group the linears of each weight without other readers, with those of the same input."""
    groups: dict[Any, list[fx.Node]] = {}
    for number, weight in weights.items():
        node = places[number]
        users = list(node.users)
        if weight.dtype != torch.float32 or weight.dim() != 2 or len(users) != 1:
            continue
        if users[0].target is F.linear and _operands(users[0])[1] is node:
            groups.setdefault(_operands(users[0])[0], []).append(users[0])
    order = {node: number for number, node in enumerate(places[0].graph.nodes)} if places else {}
    inside = [sorted(group, key=order.__getitem__) for group in groups.values()]
    return sorted(inside, key=lambda group: order[group[0]])


def _operands(node: fx.Node) -> tuple[Any, Any, Any]:
    names = ("input", "weight", "bias")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return given["input"], given["weight"], given.get("bias")
