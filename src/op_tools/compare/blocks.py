# SPDX-License-Identifier: Apache-2.0
"""A block of a large call, computed again alone on its device, and compared with the call.

Rows, heads, images and elements that do not depend on each other have the same results, gradients
and written values whether they are computed together or not. A kernel whose error depends on the
place (a tile, an edge, one element) errs at another place of the block, so the two differ. An error
that is the same in every element is in both: a sample that the host judges finds it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from op_tools.compare import eligibility, slices
from op_tools.compare.inputs import device_of
from op_tools.compare.slices import Aim, Chooser, Picks, Slice
from op_tools.core import step_counter
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import Gradients, own_graph
from op_tools.tensors import host_transfer

EACH = 16  # call of an operator of which a block is computed again, if it has as many in a step
ELEMENTS = 1 << 24  # of a block on a device
ON_HOST = 1 << 20  # of a block whose kernels are the host's
DIGITS = 1 << 12  # base of the indices among the numbers of a block, which float32 holds
NUMBERS = 5  # of the differences of one tensor
# Units by which a block may differ, as it may be summed in another order.
ROUNDING, SUMMING = 8, 256
REFUSED = (RuntimeError, ValueError, NotImplementedError)  # by the device, for the smaller shape


class Turns:
    """Which calls of an operator have a block: one of EACH, and of fewer calls in a step one more
    than a step has, so that consecutive blocks are of different calls.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._lock = threading.Lock()

    def next(self, name: str) -> bool:
        """Whether a call has a block; the first one has."""
        with self._lock:
            turn = self._turns.setdefault(name, _Turn())
            step = step_counter.current()
            if step != turn.step:
                turn.usual, turn.calls, turn.step = turn.calls, 0, step
            turn.calls += 1
            turn.since += 1
            if turn.since < min(EACH, turn.usual + 1):
                return False
            turn.since = 0
            return True


@dataclass(slots=True)
class _Turn:
    step: int = 0
    calls: int = 0  # in this step
    usual: int = EACH  # calls in the last step
    since: int = EACH  # calls since the last block


class Span(Chooser):
    """Chooses neighbouring indices, and at most half of the largest dimension.

    Consecutive calls start at other indices, so that every element is checked after a few calls.
    """

    def __init__(self, elements: int) -> None:
        super().__init__(scale=elements / slices.SAMPLE)
        self._call = 0

    def next_call(self) -> None:
        super().next_call()
        self._call += 1

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        return super().__call__(shape, free, min(elements, max(1, math.prod(shape) // 2)))

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        step = slices.STEPS[self._dimension % len(slices.STEPS)]
        self._dimension += 1
        start = int(self._call * step % 1.0 * size)
        found = (torch.arange(count) + start) % size
        found.start = start  # type: ignore[attr-defined]
        return found

    def edge(self, inner: int) -> int:
        """Products are not computed again: the projection checks them."""
        raise ValueError("a product")


@dataclass(eq=False)
class Block:
    """A part of a call, with its own copies of the arguments from before the call."""

    part: Slice
    small: Call
    requires: frozenset[int]  # ids of the arguments of `small` whose gradients are compared
    autocast: torch.dtype | None

    @classmethod
    def of(cls, call: Call, choose: Span) -> Block | None:
        """The block of a call, from before the call; None: there is none.

        Convolutions are checked by a projection, and gradients of attention are sums that cancel.
        """
        name = call.operator
        if name.startswith("conv") or ("attention" in name and name.endswith("backward")):
            return None
        part = slices.slice_of(call, choose)
        if part is None:
            return None
        small, requires = part.copied(call, lambda tensor: tensor)
        if part.written is not None or "attention" in name:
            requires = frozenset()
        autocast = eligibility.autocast_of(device_of(call))
        return cls(part, small, requires, autocast)

    def compared(self, result: object) -> Compared:
        """Compare the results and the written arguments of the finished call. Call it outside of
        the graph, under the autocast of the call.
        """
        arguments = self.small.inputs
        versions = eligibility.versions(self.small)
        try:
            alone = tensor_list(self.small.run())
        except REFUSED:
            return Compared()
        pairs: list[Pair] = []
        if self.part.written is not None:
            own = zip(self.part.written(), arguments, versions, strict=False)
            counted = eligibility.versions(self.small) != versions  # not those of fused optimizers
            pairs += [(one, arg) for one, arg, at in own if not counted or arg._version != at]
        if self.part.is_result_judged:
            known = set(map(id, arguments))
            results = zip(tensor_list(self.part.result(result)), alone, strict=False)
            pairs += [(one, other) for one, other in results if id(other) not in known]
        return Compared.of(pairs)

    def compared_gradients(self, gradients: Gradients) -> Compared:
        """Compare the gradients of the arguments, in the backward pass."""
        takers = zip(self.part.gradients, gradients.inputs, self.small.inputs, strict=False)
        own = [
            (take(gradient), leaf)
            for take, gradient, leaf in takers
            if take is not None and gradient is not None and id(leaf) in self.requires
        ]
        flown = [None if one is None else self.part.result(one) for one in gradients.outputs]
        if not own:
            return Compared()
        leaves = [leaf.requires_grad_() for _, leaf in own]
        try:
            with self._graph():
                pairs = zip(tensor_list(self.small.run()), flown, strict=False)
                outputs = [(r, g) for r, g in pairs if g is not None and r.requires_grad]
                results, grads = ([pair[at] for pair in outputs] for at in (0, 1))
                alone = torch.autograd.grad(results, leaves, grads, allow_unused=True)
        except REFUSED:
            return Compared()
        return Compared.of([(one, other) for (one, _), other in zip(own, alone, strict=True)])

    @contextmanager
    def _graph(self) -> Iterator[None]:
        """With a graph of its own, under the autocast of the call."""
        device = device_of(self.small)
        with torch.enable_grad(), own_graph(), host_transfer.no_autocast(device):
            if self.autocast is None:
                yield
                return
            with torch.autocast(device.type, self.autocast, cache_enabled=False):
                yield


# Differences.

Pair = tuple[Tensor | None, Tensor | None]  # as in the large call, and computed alone


@dataclass(frozen=True, slots=True)
class Region:
    """The elements of a large tensor that one tensor of a block has."""

    shape: torch.Size
    picks: Picks
    member: int | None  # the place of the large tensor in a list of tensors

    def aims(self, numbers: Sequence[float]) -> list[Aim]:
        """The first and the last element that differ, by the numbers of `_differing`. One of the
        two is correct where only the block computed alone errs there.
        """
        count, *digits = map(int, numbers)
        if not count or len(self.picks) != len(self.shape):
            return []
        places = {digits[at] * DIGITS + digits[at + 1] for at in (0, 2)}
        indices = (np.unravel_index(place, self.shape) for place in sorted(places))
        return [
            Aim(
                [
                    int(at if pick is None else pick[at])
                    for at, pick in zip(place, self.picks, strict=True)
                ],
                member=self.member,
            )
            for place in indices
        ]


@dataclass(frozen=True, slots=True)
class Compared:
    """Differences of a block from the large call. The numbers are on the device."""

    regions: Sequence[Region] = ()
    numbers: Tensor | None = None  # NUMBERS for each region

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Compared:
        """Count the differing elements of pairs of tensors, on the device."""
        some = [(one, other) for one, other in pairs if one is not None and other is not None]
        if any(one.shape != other.shape or one.dtype != other.dtype for one, other in some):
            return cls()
        some = [pair for pair in some if pair[0].numel()]
        if not some:
            return cls()
        regions = [
            Region(one.shape, getattr(one, "picks", ()), getattr(one, "member", None))
            for one, _ in some
        ]
        return cls(regions, torch.cat([_differing(*pair) for pair in some]))


def found(regions: Sequence[Region], numbers: Sequence[float]) -> tuple[int, list[Aim]]:
    """How many elements of a block differ, and some of their places, by numbers that were read."""
    parts = [numbers[at : at + NUMBERS] for at in range(0, len(numbers), NUMBERS)]
    aims = [region.aims(part) for region, part in zip(regions, parts, strict=True)]
    return int(sum(part[0] for part in parts)), list(chain.from_iterable(aims))


def _differing(own: Tensor, block: Tensor) -> Tensor:
    """How many elements differ; of the first and the last of them the index, in two digits."""
    wrong = _wrong(own, block).flatten()
    marks = wrong.to(torch.int8)
    first, last = marks.argmax(), len(marks) - 1 - marks.flip(0).argmax()
    digits = [first // DIGITS, first % DIGITS, last // DIGITS, last % DIGITS]
    return torch.stack([wrong.sum(), *digits]).float()


def _wrong(own: Tensor, block: Tensor) -> Tensor:
    """Mark the elements that differ by more than another order of summation explains."""
    differ = own != block
    if not (own.is_floating_point() or own.is_complex()):
        return differ
    differ &= ~((own != own) & (block != block))  # NaN in both
    is_double = own.dtype in (torch.float64, torch.complex128)
    wide = torch.float64 if is_double else torch.float32  # sums of a narrow type are made in it
    one, other = (t.to(wide) if t.is_floating_point() else t for t in (own, block))
    size = torch.maximum(one.abs(), other.abs())
    mean = torch.where(size.isfinite(), size, 0).mean()
    info = torch.finfo(own.dtype)
    allowed = ROUNDING * info.eps + SUMMING * torch.finfo(wide).eps
    # smaller numbers have fewer digits, or are zero on some devices
    least = info.tiny * (info.eps if own.dtype is torch.float16 else 1)
    close = (one - other).abs() <= allowed / 2 * (size + mean) + ROUNDING * least
    return differ & ~(close & size.isfinite())
