"""Judges a slice of each large call, so that comparing costs the same whatever the model's size.

A slice that is found wrong makes its operator, shapes and line a suspect. The next such call is
judged as a whole, or by a sample of 16 times as many elements where the whole would take minutes,
and only that verdict is reported as wrong.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from op_tools import gradients, host, interception, looks, memory, names
from op_tools.call import Call, tensor_list
from op_tools.compare import eligibility, precision, slices
from op_tools.compare.host_verdicts import Item, Taken
from op_tools.compare.rerun import again_of
from op_tools.compare.slices import Chooser, Slice
from op_tools.gradients import PART, Gradients

NO_RULE = f"more than {slices.LARGE:,} elements and no rule to sample it"
SHOWN = 5  # suspects in the summary


Judge = Callable[[Taken, Gradients | None, str], None]


@dataclass(slots=True)
class Sampling:
    """A large call between its start and its end."""

    call: Call
    part: Slice | None
    versions: list[int]
    given: Any  # where its arguments are in the graph; None: no gradients are wanted
    confirms: bool  # a larger sample, whose verdict counts


class Sampled:
    """The large calls of one run of OpAutoCompare."""

    def __init__(self, tool: Any, judge: Judge, skip: Callable[[Call, str], None]) -> None:
        self._tool, self._judge, self._skip = tool, judge, skip
        self._choose, self._choose_more = Chooser(), Chooser(scale=16)
        self._lock = threading.Lock()
        self._suspects: dict[Hashable, bool] = {}  # whether the call was judged again as a whole
        self.unconfirmed: dict[Hashable, str] = {}
        self.calls = self.views = 0

    def takes(self, call: Call) -> bool:
        """Whether a call is judged by a slice: a suspect is judged as a whole, once."""
        if call.level == "module" or not slices.is_large(call):
            return False
        return not (slices.is_affordable(call) and self._recurs(call))

    def _recurs(self, call: Call) -> bool:
        """Whether a call is the first one after a suspicious call of its kind."""
        if not self._suspects:
            return False
        key = _key(call)
        with self._lock:
            if self._suspects.get(key) is not False:
                return False
            self._suspects[key] = True
            return True

    def before(self, call: Call) -> Sampling | None:
        reason = eligibility.unfit(call)
        if reason:
            self._skip(call, reason)
            return None
        part, confirms = None, self._recurs(call)
        if not names.is_view(call.name, call.args):
            part = slices.slice_of(call, self._choose_more if confirms else self._choose)
            if part is None:
                self._skip(call, NO_RULE)
                return None
        wanted = part is not None and any(part.gradients) and call.level != "aten"
        given = gradients.arguments(call) if wanted or _has_products(call) else None
        return Sampling(call, part, eligibility.versions(call), given, confirms)

    def after(self, state: Sampling, result: Any) -> None:
        call, part = state.call, state.part
        made = tensor_list(result)
        if part is None:
            part = self._of_view(call, made)
            if part is None:
                return
        reason = eligibility.kind(made)
        if reason:
            self._skip(call, reason)
            return
        wrote = bool(eligibility.writes(call, state.versions, eligibility.versions(call)))
        if wrote and part.written is None:
            self._skip(call, NO_RULE)
            return
        taken = self._taken(call, part, result, made, wrote)
        taken.sampled = not state.confirms
        memory.wait_for_host(call.device or eligibility.HOST, result)
        if part.is_result_judged:
            self._judge(taken, None, "")
        if state.part is not None and not wrote:
            self._judge_non_finite(state, taken, result, made)
        with self._lock:
            self.calls += 1
        if state.given is not None and any(tensor.requires_grad for tensor in made):
            self._watch(state, taken, result)

    def _judge_non_finite(
        self, state: Sampling, sample: Taken, result: Any, made: list[Tensor]
    ) -> None:
        """Judges an element that is not finite, if the floating arguments are. A sample misses
        rare ones; whether it is an error, as 1 / 0 is not, the reference says.
        """
        large = [one for one in made if one.numel() > slices.LARGE and looks.has_numbers(one)]
        if not large or all(map(math.isfinite, looks.numbers(looks.greatest(large)))):
            return
        given = looks.health(state.call.given)
        if given.nan or given.inf:
            return
        found = next(one for one in large if not bool(torch.isfinite(one).all()))
        first = torch.isfinite(found).logical_not().flatten().to(torch.int8).argmax()
        place = [int(at) for at in torch.unravel_index(first.cpu(), found.shape)]
        part = slices.slice_of(state.call, slices.Aim(place))
        if part is not None and part.is_result_judged:
            taken = self._taken(state.call, part, result, made, False)
            if not all(bool(torch.isfinite(one).all()) for one in tensor_list(taken.result)):
                taken.sampled = sample.sampled
                self._judge(taken, None, "")
                return
        text = f"not finite at {place}, of finite arguments"
        self._note(state.call, sample.key, text)

    def _of_view(self, call: Call, made: list[Tensor]) -> Slice | None:
        """Nothing for a view, which computes nothing; a slice where it is a copy after all."""
        own = {tensor.untyped_storage()._cdata for tensor in call.given}
        if all(tensor.untyped_storage()._cdata in own for tensor in made):
            with self._lock:
                self.views += 1
            return None
        part = slices.slice_of(call, self._choose)
        if part is None:
            self._skip(call, NO_RULE)
        return part

    def _taken(
        self, call: Call, part: Slice, result: Any, made: list[Tensor], wrote: bool
    ) -> Taken:
        copies = host.Copies(host.host_copy)
        small = call.given_others(copies.of(part.args), copies.of(part.kwargs))
        small.func = call.func if part.func is None else part.func
        if len({id(tensor) for tensor in call.given}) < len(call.given):
            small = _shared(call, small, part)
        device = call.device or eligibility.HOST
        # the order of arguments is that of the large call, unless lists were cut short
        given = [id(own) for own in call.given]
        wants = [
            # the gradient of a tensor that is given twice is the sum of two
            part.gradients[at] is not None and own.requires_grad and given.count(id(own)) == 1
            for at, own in enumerate(call.given[: len(part.gradients)])
        ]
        requires = frozenset(
            id(copy) for copy, want in zip(small.given, wants, strict=False) if want
        )
        types = [tensor.dtype for tensor in made]
        again = again_of(small, requires, wrote, eligibility.autocast_of(device), types)
        again.precision = precision.now(call)
        after: Sequence[Tensor | None] = [None] * len(small.given)
        if part.written is not None:
            after = [None if t is None else host.host_copy(t) for t in part.written()]
        mine = host.mapped(part.result(result), _on_host)
        taken = Taken(again, mine, after, bool(requires), str(device))
        taken.key = _key(call)
        return taken

    def _watch(self, state: Sampling, taken: Taken, result: Any) -> None:
        call, part = state.call, state.part
        assert part is not None
        guard = interception.guard(self._tool, taken.call)
        choose = self._choose_more if state.confirms else self._choose
        products = _product_gradients(call, choose)

        def done(found: Gradients) -> None:
            if not found.complete:
                self._skip(taken.call, PART)
                return
            if taken.wants_gradient:
                takers = part.gradients
                flown = [_slice(part.result, tensor) for tensor in found.outputs]
                into = [_slice(take, t) for take, t in zip(takers, found.inputs, strict=True)]
                self._judge(taken, Gradients(flown, into, True), "")
            for product in products:
                small = product(found)
                if small is not None:
                    self._judge(self._product(call, taken, *small), None, "")

        # a part of a gradient is taken when the whole call has had its gradients
        gradients.watch(call, state.given, result, Tensor.detach, guard(done), guard)

    def _product(
        self, call: Call, taken: Taken, label: str, args: tuple[Tensor, Tensor], mine: Tensor
    ) -> Taken:
        """The product that a gradient of a product is."""
        copies = host.Copies(host.host_copy)
        small = call.given_others(copies.of(args), {})
        small.func = torch.matmul
        device = call.device or eligibility.HOST
        again = again_of(small, (), False, None, [mine.dtype])
        again.rounded = taken.again.rounded
        again.precision = taken.again.precision
        made = Taken(again, host.host_copy(mine), [None, None], False, str(device))
        made.sampled, made.label, made.key = taken.sampled, label, taken.key
        return made

    # Suspects.

    def suspect(self, taken: Taken, wrong: Sequence[Item]) -> None:
        """A slice was found wrong: the next such call is judged as a whole."""
        self._note(taken.call, taken.key, wrong[0].verdict.message, wrong[0].label)

    def _note(self, call: Call, key: Hashable, text: str, label: str = "output") -> None:
        place = call.site.short if call.site is not None else "unknown line"
        with self._lock:
            self._suspects.setdefault(key, False)
            self.unconfirmed.setdefault(
                key, f"{call.name} {label} ({place}, step {call.step}): {text}"
            )

    def confirm(self, taken: Taken) -> None:
        """A call was found wrong as a whole, or by a larger sample."""
        with self._lock:
            self.unconfirmed.pop(taken.key or _key(taken.call), None)

    def summary(self) -> list[str]:
        """Lines for the end of the run."""
        lines = []
        if self.calls:
            lines.append(f"OpAutoCompare: {self.calls} large calls were judged by a sample of them")
        lines += [
            f"OpAutoCompare: suspect, not confirmed by a whole call: {text}"
            for text in list(self.unconfirmed.values())[:SHOWN]
        ]
        return lines


def _key(call: Call) -> Hashable:
    """What a large call and a copy of it on the host have in common with no other call."""
    place = call.site.short if call.site is not None else ""
    shapes = tuple([(tensor.shape, tensor.dtype) for tensor in call.given])
    return call.name, place, call.module, shapes


def _shared(call: Call, small: Call, part: Slice) -> Call:
    """The small call with one copy of a tensor that is given twice: its gradient is the sum of
    both. Where the copies are of different parts, the gradient is not judged.
    """
    first: dict[int, int] = {}
    substitutes: dict[int, Tensor] = {}
    for at, (own, copy) in enumerate(zip(call.given, small.given, strict=False)):
        place = first.setdefault(id(own), at)
        if place == at:
            continue
        if torch.equal(small.given[place], copy):
            substitutes[id(copy)] = small.given[place]
        elif at < len(part.gradients):
            part.gradients[place] = part.gradients[at] = None
    args, kwargs = host.mapped(
        (small.args, small.kwargs), lambda leaf: substitutes.get(id(leaf), leaf)
    )
    made = small.given_others(args, kwargs)
    made.func = small.func
    return made


def _on_host(leaf: Any) -> Any:
    return host.host_copy(leaf) if isinstance(leaf, Tensor) else leaf


def _slice(take: Callable[[Tensor], Tensor] | None, tensor: Tensor | None) -> Tensor | None:
    return None if take is None or tensor is None else host.host_copy(take(tensor))


# Gradients of products: products themselves, of other rows and columns than those of the result.

Product = Callable[[Gradients], tuple[str, tuple[Tensor, Tensor], Tensor] | None]


def _has_products(call: Call) -> bool:
    return call.level != "aten" and call.operator in ("linear", "matmul", "mm", "bmm")


def _product_gradients(call: Call, choose: Chooser) -> list[Product]:
    """For each gradient of the two factors: what finds a part of it, and the product that it is."""
    if not _has_products(call) or len(call.args) < 2:
        return []
    first, second = (factor.detach() for factor in call.args[:2])
    if first.dim() < 2 or second.dim() < 2 or call.args[0] is call.args[1]:
        return []
    transposed = call.operator == "linear"
    if not transposed and first.shape[:-2] != second.shape[:-2]:
        return []
    labels = ["grad[0]", "grad[1]"]

    def of_first(found: Gradients) -> tuple[str, tuple[Tensor, Tensor], Tensor] | None:
        flown, mine = found.outputs[0], found.inputs[0]
        if flown is None or mine is None:
            return None
        other = second if transposed else second.transpose(-1, -2)  # gradient of result @ other
        return labels[0], *_tile(flown, other, mine, choose)

    def of_second(found: Gradients) -> tuple[str, tuple[Tensor, Tensor], Tensor] | None:
        flown, mine = found.outputs[0], found.inputs[1]
        if flown is None or mine is None:
            return None
        if transposed:
            rows, columns = flown.flatten(0, -2), first.flatten(0, -2)
            return labels[1], *_tile(rows.t(), columns, mine, choose)
        return labels[1], *_tile(first.transpose(-1, -2), flown, mine, choose)

    return [of_first, of_second]


def _tile(
    left: Tensor, right: Tensor, mine: Tensor, choose: Chooser
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Some rows of `left`, some columns of `right`, and the tile of their product `mine`."""
    inner = left.shape[-1]
    edge = choose.edge(inner)
    rows = choose(left.shape[:-1], range(left.dim() - 1), edge)
    columns = choose.indices(right.shape[-1], edge) if right.shape[-1] > edge else None
    assert rows is not None  # every dimension is free
    batch = rows[:-1] if right.dim() > 2 else ()
    factors = slices.take(left, (*rows, None)), slices.take(right, (*batch, None, columns))
    return factors, slices.take(mine, (*rows, columns))
