# SPDX-License-Identifier: Apache-2.0
"""Judges a slice of each large call, so that comparing costs the same whatever the model's size.

In the thread of the program a slice is chosen, gathered on the device, and its copy to the host is
launched. Another thread judges it. A slice that is wrong makes its operator, shapes and line a
suspect. The next such call is judged as a whole, or by a sample of 16 times as many elements where
the whole would take minutes, at once, and only that verdict is reported as wrong.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.compare import blocks, eligibility, precision, projection, slices
from op_tools.compare.host_verdicts import Item, Taken
from op_tools.compare.inputs import Transfer
from op_tools.compare.rerun import again_of
from op_tools.compare.slices import Aim, Chooser, Slice
from op_tools.core import dispatch, gradients, op_names
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import PART, Gradients
from op_tools.tensors import aliasing, finite, host_transfer, statistics

if TYPE_CHECKING:
    from op_tools.compare.tool import OpAutoCompare

NO_RULE = _("more than {large:,} elements and no rule to sample it").format(large=slices.LARGE)
SHOWN = 5  # suspects in the summary
CHECKS = 8  # calls of one suspect that are judged as a whole
NEAR = 8  # elements of a row that are judged where its device sees the largest errors
EACH = 8  # product that the host's kernels make is checked by a projection
BLOCK_EACH = 16  # call of an operator of which a block is computed again
LARGER = 16  # times as many elements, in a sample that confirms
# Operators whose results have no NaN where all arguments are finite: NaN needs 0 / 0 or Inf - Inf.
NEVER_NAN = frozenset(
    """
    linear mm matmul bmm addmm baddbmm conv1d conv2d conv3d convolution embedding silu gelu relu
    sigmoid tanh softplus leaky_relu hardswish elu add sub mul neg abs clamp where cat stack
    masked_fill softmax log_softmax _softmax _log_softmax layer_norm native_layer_norm rms_norm
    _fused_rms_norm group_norm native_group_norm silu_backward gelu_backward threshold_backward
    native_dropout_backward index_select gather reshape contiguous clone _to_copy to copy
    """.split()
)
NAN = _("NaN in the result, of arguments that are all finite")


@dataclass(slots=True)
class Sampling:
    """A large call between its start and its end."""

    call: Call
    part: Slice | None  # None: a view, or a call that only its device checks
    is_view: bool  # of which a slice is taken after the call if it is a copy
    versions: list[int]
    given: Any  # where its arguments are in the graph; None: no gradients are wanted
    confirms: bool  # a larger sample of a suspect, whose verdict counts


@dataclass(slots=True)
class Suspect:
    """An operator with shapes and a line, of which a slice was wrong."""

    text: str
    only_non_finite: bool  # which may be the operator's meaning, as of 1 / 0
    checks: int = 0  # calls that were judged as a whole
    is_due: bool = True  # the next call is to be
    is_confirmed: bool = False
    is_right: bool = False  # a whole call with results that are not finite was right


class Suspects:
    """Which calls are to be judged as a whole, and what became of that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Hashable, Suspect] = {}

    def note(self, call: Call, key: Hashable, item: str, text: str, non_finite: bool) -> None:
        """A slice of a call was wrong: the next call with this key is due."""
        place = call.site.short if call.site is not None else _("unknown line")
        text = _("{name} {item} ({place}, step {step}): {text}").format(
            name=call.name, item=item, place=place, step=call.step, text=text
        )
        with self._lock:
            known = self._found.get(key)
            if known is None:
                self._found[key] = Suspect(text, non_finite)
            elif not (known.is_right and non_finite) and known.checks < CHECKS:
                known.is_due = True

    def takes(self, call: Call) -> bool:
        """Whether a call is the first one after a suspicious call of its kind; asked once."""
        if not self._found:  # hot path
            return False
        suspect = self._found.get(key_of(call))
        if suspect is None:
            return False
        with self._lock:
            if not suspect.is_due:
                return False
            suspect.is_due = False
            suspect.checks += 1
            return True

    def judged(self, taken: Taken, is_right: bool) -> None:
        """The verdict on a whole call, or on a larger sample of it."""
        if not self._found:  # hot path
            return
        with self._lock:
            suspect = self._found.get(taken.key or key_of(taken.call))
            if suspect is not None:
                suspect.is_confirmed |= not is_right
                suspect.is_right |= is_right and suspect.only_non_finite

    def unconfirmed(self) -> list[str]:
        """The suspects whose fault did not recur, in words."""
        found = self._found.values()
        return [one.text for one in found if not one.is_confirmed and not one.is_right]


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a check on the device is of. It holds no tensor of the device."""

    call: Call
    key: Hashable
    label: str
    given: Sequence[Tensor]  # a sample of the arguments on the host
    shown: Tensor | None  # some of the result, without values
    names: tuple[str, ...] = ()  # of the numbers: "greatest", "of arguments", "block"


@dataclass
class Counts:
    """How many large calls were judged by a sample, or only made views."""

    calls: int = 0
    views: int = 0
    by_operator: Counter[str] = field(default_factory=Counter)


class Sampled:
    """The large calls of one run of OpAutoCompare."""

    def __init__(self, tool: OpAutoCompare) -> None:
        self._tool = tool
        self._choose, self._choose_more = Chooser(), Chooser(scale=LARGER)
        self._lock = threading.Lock()
        self._blocks = blocks.Block(blocks.ELEMENTS), blocks.Block(blocks.ON_HOST)
        self._turns: Counter[tuple[str, str]] = Counter()  # calls that the device may check
        self._checks = projection.Checks(self._note)
        self.suspects = Suspects()
        self.counts = Counts()

    def takes(self, call: Call, is_suspect: bool) -> bool:
        """Whether a call is judged by a slice: a suspect is judged as a whole, if that is soon
        done.
        """
        if call.level == "module" or not slices.is_large(call):
            return False
        return not (is_suspect and slices.is_affordable(call))

    def before(self, call: Call, is_suspect: bool) -> Sampling | None:
        reason = eligibility.unfit(call)
        if reason:
            self._tool.skip(call, reason)
            return None
        part, is_view = None, op_names.is_view(call.name, call.args)
        if not is_view and (is_suspect or self._tool.has_time(call)):
            part = self._slice(call, is_suspect)
            if part is None:
                return None
        wanted = part is not None and any(part.gradients) and call.level != "aten"
        given = gradients.arguments(call) if wanted or _has_products(call) else None
        return Sampling(call, part, is_view, eligibility.versions(call), given, is_suspect)

    def _slice(self, call: Call, is_suspect: bool) -> Slice | None:
        choose = self._choose_more if is_suspect else self._choose
        if self._tool.budget is not None and not is_suspect:
            choose.scale = self._tool.budget.scale
        part = slices.slice_of(call, choose)
        if part is None:
            self._tool.skip(call, NO_RULE)
        return part

    def after(self, state: Sampling, result: Any) -> None:
        call = state.call
        made = tensor_list(result)
        if state.is_view:
            if _shares_memory(call, made):
                with self._lock:
                    self.counts.views += 1
                return
            if not self._tool.has_time(call):
                return
            state.part = self._slice(call, is_suspect=False)
            if state.part is None:
                return
        reason = eligibility.kind(made)
        wrote = bool(eligibility.writes(call, state.versions, eligibility.versions(call)))
        if not reason and wrote and state.part is not None and state.part.written is None:
            reason = NO_RULE
        if reason:
            self._tool.skip(call, reason)
            return
        aliasing.wait_for_host(call.device or eligibility.HOST, result)
        taken = None if state.part is None else self._judge(state, state.part, result, made, wrote)
        if not wrote:
            self._check(state, taken, result, made)
        if state.given is not None and any(tensor.requires_grad for tensor in made):
            self._watch(state, taken, result)
        if wrote:
            return
        if state.confirms:
            self._judge_place(state, result, made)
        elif self._tool.sees_once and self.suspects.takes(call):
            self._tool.judge_again(call, result)

    def _judge(
        self, state: Sampling, part: Slice, result: Any, made: list[Tensor], wrote: bool
    ) -> Taken | None:
        """Copies a slice of a call to the host, to be judged there; None: too many are pending."""
        transfer = self._transfer(state)
        taken = self._taken(state.call, part, result, made, wrote, transfer)
        taken.sampled = not state.confirms
        if part.is_result_judged and not self._tool.judge(
            taken.call, transfer, partial(self._tool.forward, taken, "")
        ):
            return None
        if not part.is_result_judged:
            transfer.launched()
        with self._lock:
            self.counts.calls += 1
            self.counts.by_operator[state.call.name] += 1
        return taken

    def _transfer(self, state: Sampling) -> Transfer:
        return Transfer(self._tool.is_late(state.call.device) and not state.confirms)

    # Checks of the device: a sample misses rare errors.

    def _check(self, state: Sampling, taken: Taken | None, result: Any, made: list[Tensor]) -> None:
        """Launches what the device can check of a whole result."""
        call = state.call
        if state.confirms:
            return
        product = projection.start(call, result) if self._projects(call, "output") else None
        numbers: dict[str, Tensor | None] = {}
        if product is None and state.part is not None and self._is_turn(call, "block", BLOCK_EACH):
            numbers["block"] = blocks.differing(call, result, self._block(call))
        # an argument may say that the result is not to be finite
        if not any(map(_is_not_finite, call.args)):
            never_nan = _is_never_nan(call)
            numbers["greatest"] = projection.greatest(made if never_nan else _large(made))
            if never_nan and product is None:
                numbers["of arguments"] = projection.greatest(call.given)
        self._launch(call, key_of(call), taken, "output", made, product, numbers)

    def _launch(
        self,
        call: Call,
        key: Hashable,
        taken: Taken | None,
        label: str,
        made: Sequence[Tensor],
        product: projection.Pending | None,
        numbers: dict[str, Tensor | None],
    ) -> None:
        known = {name: one.reshape(()).float() for name, one in numbers.items() if one is not None}
        if product is None and not known:
            return
        header = call.given_others((), {}) if taken is None else taken.call
        shown = next((one.to("meta") for one in made if one.is_floating_point()), None)
        given = () if taken is None else header.given
        checked = _Checked(header, key, label, given, shown, tuple(known))
        self._checks.add(checked, product, list(known.values()))
        is_late = self._tool.is_late(call.device)
        # together they are cheaper where it costs time to launch a kernel
        self._checks.advance(at_once=self._is_on_host(call), wait=not is_late)

    def _note(
        self, checked: _Checked, finding: projection.Finding | None, numbers: list[float]
    ) -> None:
        """Reports a NaN, or makes a suspect of a call, by what the device's checks found."""
        found = dict(zip(checked.names, numbers, strict=True))
        greatest, block = found.get("greatest", 0.0), int(found.get("block", 0))
        is_finite = "of arguments" in found and math.isfinite(found["of arguments"])
        of_finite = is_finite or (finding is not None and finding.non_finite > 0)
        place = checked.call, checked.key, checked.label
        if math.isnan(greatest) and of_finite and checked.shown is not None:
            self._tool.report_nan(checked.call, checked.label, checked.shown, NAN)
        elif finding is not None:
            text = _("by a projection, {message}").format(message=finding.message)
            self.suspects.note(*place, text, finding.non_finite > 0)
        elif block:
            text = _("{block:,} elements differ from a part of the call, computed alone").format(
                block=block
            )
            self.suspects.note(*place, text, non_finite=False)
        elif not math.isfinite(greatest) and are_finite(checked.given):
            # what is not finite in the arguments may be so in the result
            text = _("the result is not finite; whether the arguments are was not checked")
            self.suspects.note(*place, text, non_finite=True)

    def _block(self, call: Call) -> blocks.Block:
        return self._blocks[self._is_on_host(call)]

    def _is_on_host(self, call: Call) -> bool:
        """Whether the kernels of a call are the host's."""
        return call.device is None or statistics.kind_is_seen(call.device.type)

    def _projects(self, call: Call, item: str) -> bool:
        """Whether a product is checked by a projection: each of a GPU, some of a host's kernels, of
        which the check's own kernels take as long as a small product.
        """
        return not self._is_on_host(call) or self._is_turn(call, item, EACH)

    def _is_turn(self, call: Call, item: str, each: int) -> bool:
        """Whether a call is one of `each` of its operator, the first of them included."""
        with self._lock:
            self._turns[call.name, item] += 1
            return self._turns[call.name, item] % each == 1

    def finish(self) -> None:
        """Reads the checks that are pending."""
        self._checks.advance(wait=True)

    def _judge_place(self, state: Sampling, result: Any, made: list[Tensor]) -> None:
        """Judges the elements of a suspect's result which the device's own checks point to."""
        call = state.call
        aim = _not_finite(call, made) or _differing(call, result)
        aims = [aim] if aim is not None else blocks.places(call, result, self._block(call))
        for part in [slices.slice_of(call, aim) for aim in aims]:
            if part is not None and part.is_result_judged:
                transfer = self._transfer(state)
                taken = self._taken(call, part, result, made, False, transfer)
                self._tool.judge(taken.call, transfer, partial(self._tool.forward, taken, ""))

    def _taken(
        self,
        call: Call,
        part: Slice,
        result: Any,
        made: list[Tensor],
        wrote: bool,
        transfer: Transfer,
    ) -> Taken:
        args, kwargs = _shared(call, part)
        copies = host_transfer.Copies(transfer.copy)
        small = call.given_others(copies.of(args), copies.of(kwargs))
        small.func = call.func if part.func is None else part.func
        device = call.device or eligibility.HOST
        # the order of arguments is that of the large call, unless lists were cut short
        given = [id(own) for own in call.given]
        requires = frozenset(
            id(copy)
            # the gradient of a tensor that is given twice is the sum of two
            for own, take, copy in zip(call.given, part.gradients, small.given, strict=False)
            if take is not None and own.requires_grad and given.count(id(own)) == 1
        )
        types = [tensor.dtype for tensor in made]
        again = again_of(small, requires, wrote, eligibility.autocast_of(device), types)
        again.precision = precision.now(call)
        again.draws_nothing = True  # no rule is for a call that draws
        after: Sequence[Tensor | None] = [None] * len(small.given)
        if part.written is not None:
            after = [None if t is None else transfer.copy(t) for t in part.written()]
        mine = host_transfer.mapped(part.result(result), transfer.leaf)
        return Taken(again, mine, after, bool(requires), str(device), key=key_of(call))

    def _watch(self, state: Sampling, taken: Taken | None, result: Any) -> None:
        """Judges the gradients of a call; of one that was not sampled, only products, by a
        projection.
        """
        call, part, tool = state.call, state.part, self._tool
        # what the hooks hold lives as long as the graph: no tensor of the device but the factors of
        # products, which are let go after the backward pass has read them
        key, header = key_of(call), call.given_others((), {})
        guard = dispatch.guard(tool, header)
        confirms, choose = state.confirms, self._choose_more if state.confirms else self._choose
        products = _product_gradients(call)
        is_rounded = eligibility.autocast_of(call.device or eligibility.HOST) is not None
        late = self._transfer(state).is_late
        take = None if part is None else (part.result, part.gradients)

        def done(found: Gradients) -> None:
            if not found.complete:
                tool.skip(header, PART)
                return
            with tool.timed():
                judge(found)

        def judge(found: Gradients) -> None:
            transfer = Transfer(late)
            if taken is not None and take is not None and taken.wants_gradient:
                flown = [transfer.part(take[0], tensor) for tensor in found.outputs]
                into = list(map(transfer.part, take[1], found.inputs))
                into += [None] * (len(taken.call.given) - len(into))  # that only the slice has
                sliced = Gradients(flown, into, True)
                tool.judge(taken.call, transfer, partial(tool.backward, taken, sliced))
            factors = [product for product in (one(found) for one in products) if product]
            products.clear()
            for product in factors:
                if taken is not None:
                    self._judge_tile(taken, product, product.tile(choose), transfer)
                if not is_rounded and not confirms and self._projects(header, product.label):
                    pending = projection.start(product.call(header), product.mine)
                    made = [product.mine]
                    self._launch(header, key, taken, product.label, made, pending, {})
                aim = product.differing(header) if taken is not None and confirms else None
                if taken is not None and aim is not None:
                    self._judge_tile(taken, product, product.tile(aim), transfer)

        # a part of a gradient is taken when the whole call has had its gradients
        gradients.watch(call, state.given, result, Tensor.detach, guard(done), guard)

    def _judge_tile(
        self,
        taken: Taken,
        product: Product,
        tile: tuple[Tensor, Tensor, Tensor],
        transfer: Transfer,
    ) -> None:
        """Judges a tile of the product that a gradient of a product is."""
        *args, mine = tile
        small = taken.call.given_others(tuple(map(transfer.copy, args)), {})
        small.func = _times
        again = again_of(small, (), False, None, [mine.dtype])
        again.rounded, again.precision = taken.again.rounded, taken.again.precision
        again.draws_nothing = True
        made = Taken(again, transfer.copy(mine), [None, None], False, taken.device)
        made.sampled, made.label, made.key = taken.sampled, product.label, taken.key
        self._tool.judge(made.call, transfer, partial(self._tool.forward, made, ""))

    # Verdicts.

    def judged(self, taken: Taken, wrong: Sequence[Item]) -> Sequence[Item]:
        """What of a verdict is to be reported as wrong: of a sample nothing, it makes a suspect."""
        if not taken.sampled:
            self.suspects.judged(taken, not wrong)
            return wrong
        # a call with a NaN does not come again with finite arguments: its sample has to do
        certain = [item for item in wrong if _is_nan_alone(item)]
        if wrong and not certain:
            item, verdict = wrong[0].label, wrong[0].verdict
            self.suspects.note(taken.call, taken.key, item, verdict.message, non_finite=False)
        return certain

    def summary(self) -> list[str]:
        """Lines for the end of the run."""
        lines = []
        if self.counts.calls:
            lines.append(
                _("OpAutoCompare: {calls} large calls were judged by a sample of them").format(
                    calls=self.counts.calls
                )
            )
        return lines + [
            _("OpAutoCompare: suspect, not confirmed by a whole call: {text}").format(text=text)
            for text in self.suspects.unconfirmed()[:SHOWN]
        ]


def key_of(call: Call) -> Hashable:
    """What a large call and a copy of it on the host have in common with no other call."""
    place = call.site.short if call.site is not None else ""
    shapes = tuple([(tensor.shape, tensor.dtype) for tensor in call.given])
    return call.name, place, call.module, shapes


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_nan_alone(item: Item) -> bool:
    """Whether a wrong result is NaN where the reference, of the same arguments, is finite."""
    result, expected = item.verdict.result, item.verdict.expected
    return _is_nan(result) and isinstance(expected, (int, float)) and math.isfinite(expected)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shares_memory(call: Call, made: list[Tensor]) -> bool:
    own = {tensor.untyped_storage()._cdata for tensor in call.given}
    return all(tensor.untyped_storage()._cdata in own for tensor in made)


def _shared(call: Call, part: Slice) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a slice with one copy of a tensor that is given twice: its gradient is the
    sum of both. Where the copies are of different elements, the gradient is not judged.
    """
    if len({id(tensor) for tensor in call.given}) == len(call.given):  # hot path
        return part.args, part.kwargs
    first: dict[int, int] = {}
    substitutes: dict[int, Tensor] = {}
    small = tensor_list(part.args, part.kwargs)
    for at, (own, copy) in enumerate(zip(call.given, small, strict=False)):
        place = first.setdefault(id(own), at)
        if place == at:
            continue
        if slices.are_same_elements(small[place], copy):
            substitutes[id(copy)] = small[place]
        elif at < len(part.gradients):
            part.gradients[place] = part.gradients[at] = None
    args, kwargs = host_transfer.mapped(
        (part.args, part.kwargs), lambda leaf: substitutes.get(id(leaf), leaf)
    )
    return args, kwargs


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors of the host have no NaN or Inf."""
    return all(bool(torch.isfinite(one).all()) for one in tensors if one.is_floating_point())


def _large(made: list[Tensor]) -> list[Tensor]:
    return [one for one in made if one.numel() > slices.LARGE and finite.has_numbers(one)]


def _is_never_nan(call: Call) -> bool:
    """Whether a call of finite arguments has no NaN in its result."""
    if call.operator != "scaled_dot_product_attention":
        return call.operator in NEVER_NAN
    mask = call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")
    return mask is None  # a mask may leave out all keys of a query


def _not_finite(call: Call, made: list[Tensor]) -> Aim | None:
    """An element that is not finite, where the arguments are.

    Whether it is wrong, as 1 / 0 is not, the reference says.
    """
    found = next((one for one in _large(made) if not torch.isfinite(one).all()), None)
    if found is None:
        return None
    given = finite.health(call.given)
    if given.nan or given.inf:
        return None
    first = torch.isfinite(found).logical_not().flatten().to(torch.int8).argmax()
    return Aim([int(at) for at in torch.unravel_index(first.cpu(), found.shape)])


def _differing(call: Call, result: Any) -> Aim | None:
    """The elements of a product with the largest errors in the row with the largest, by the
    device's own float32, which may err as well.
    """
    pending = projection.start(call, result)
    finding = None if pending is None else pending.verdict()
    if finding is None or call.operator.startswith("conv"):
        return None
    row = [int(at) for at in np.unravel_index(finding.row, result.shape[:-1])]
    part = slices.slice_of(call, slices.Row(row))
    if part is None:
        return None
    args = host_transfer.mapped(part.args, _in_float32)
    kwargs = host_transfer.mapped(part.kwargs, _in_float32)
    error = (call.func(*args, **kwargs) - _in_float32(part.result(result))).abs()
    return Aim(row, error.flatten().topk(min(NEAR, error.numel())).indices.tolist())


def _in_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


# Gradients of products: products themselves, of other rows and columns than those of the result.


@dataclass(frozen=True, slots=True)
class Product:
    """A gradient of a factor: `left @ right` is to be `mine`."""

    label: str
    left: Tensor
    right: Tensor
    mine: Tensor

    def tile(self, choose: Chooser) -> tuple[Tensor, Tensor, Tensor]:
        """Some rows of `left`, some columns of `right`, and the tile of `mine`."""
        choose.next_call()
        left, right = self.left, self.right
        inner = left.shape[-1]
        edge = choose.edge(inner)
        rows = choose(left.shape[:-1], range(left.dim() - 1), edge)
        columns = choose.indices(right.shape[-1], edge, -1) if right.shape[-1] > edge else None
        assert rows is not None  # every dimension is free
        batch = rows[:-1] if right.dim() > 2 else ()
        factors = slices.take(left, (*rows, None)), slices.take(right, (*batch, None, columns))
        return *factors, slices.take(self.mine, (*rows, columns))

    def differing(self, call: Call) -> Aim | None:
        """The elements with the largest errors, as the device sees them."""
        return _differing(self.call(call), self.mine)

    def call(self, call: Call) -> Call:
        """The gradient as a call; `call`: the one that it is a gradient of."""
        made = call.given_others((self.left, self.right), {})
        made.name, made.func = "torch.matmul", torch.matmul
        return made


def _has_products(call: Call) -> bool:
    return call.level != "aten" and call.operator in ("linear", "matmul", "mm", "bmm")


def _product_gradients(call: Call) -> list[Callable[[Gradients], Product | None]]:
    """For each gradient of the two factors: what makes the product that it is of gradients."""
    if not _has_products(call) or len(call.args) < 2:
        return []
    first, second = (factor.detach() for factor in call.args[:2])
    if first.dim() < 2 or second.dim() < 2 or call.args[0] is call.args[1]:
        return []
    transposed = call.operator == "linear"
    if not transposed and first.shape[:-2] != second.shape[:-2]:
        return []

    def of_first(found: Gradients) -> Product | None:
        flown, mine = found.outputs[0], found.inputs[0]
        if flown is None or mine is None:
            return None
        other = second if transposed else second.transpose(-1, -2)  # gradient of result @ other
        return Product("grad[0]", flown, other, mine)

    def of_second(found: Gradients) -> Product | None:
        flown, mine = found.outputs[0], found.inputs[1]
        if flown is None or mine is None:
            return None
        if transposed:
            rows, columns = flown.flatten(0, -2), first.flatten(0, -2)
            return Product("grad[1]", rows.t(), columns, mine)
        return Product("grad[1]", first.transpose(-1, -2), flown, mine)

    return [of_first, of_second]


def _times(left: Tensor, right: Tensor, bias: None = None) -> Tensor:
    """A product that may be called as the operator that it is a gradient of."""
    return torch.matmul(left, right)
