# SPDX-License-Identifier: Apache-2.0
"""OpAutoCompare: rerun each call on the CPU in higher precision; compare results and gradients.

A small call is judged as a whole. Of a large call a slice is judged, so that comparing costs the
same whatever the model's size: the program's thread chooses the slice, gathers it on the device and
launches its copy to the host; another thread judges it. A slice that is wrong makes its operator,
shapes and line a suspect. The next such call is judged as a whole, or by a sample of 16 times as
many elements where the whole would take minutes, at once, and only that verdict is reported.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deeplink import settings
from deeplink.i18n import _
from deeplink.judge import verdict
from op_tools.compare import device_checks, eligibility, host_verdicts, inputs, precision, slices
from op_tools.compare.blocks import Block
from op_tools.compare.budget import Budget, Pace
from op_tools.compare.console import Failure, Rows, device_rows, show, show_summary
from op_tools.compare.device_checks import DeviceChecks, GradientProduct
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.failure_store import Saver
from op_tools.compare.host_verdicts import Differed, Item, RecordedCall
from op_tools.compare.inputs import Transfer
from op_tools.compare.judging import Job, Judges
from op_tools.compare.options import is_remote, read_options
from op_tools.compare.problems import Patterns
from op_tools.compare.rerun import Rerun, make_rerun
from op_tools.compare.slices import Chooser, Slice, Taker
from op_tools.compare.suspects import Suspect, Suspects, key_of
from op_tools.core import dispatch, gradients, graph_capture, native_library, op_names, terminal
from op_tools.core.call import Call, signature, tensor_list
from op_tools.core.dispatch import Plan
from op_tools.core.gradients import Gradients
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.tensors import aliasing, host_transfer, statistics
from op_tools.tensors.overlap import Overlap, overlaps

BEYOND = _("beyond the budget")
BEHIND = _("too many calls were waiting to be judged")
NO_RULE = _("more than {large:,} elements and no rule to sample it").format(large=slices.LARGE)
SHOWN = 5  # suspects in the summary
LARGER = 16  # times as many elements, in a sample that confirms
REREAD_FIRST, REREAD_EVERY = 16, 8  # calls of an operator whose arguments are copied after it, too


@dataclass(slots=True)
class _State:
    """A call between its start and its end."""

    call: Call
    is_large: bool
    is_view: bool
    confirms: bool  # a suspect: its verdict counts
    versions: list[int]  # of the arguments
    transfer: Transfer
    arguments: gradients.Arguments | None = None  # None: no gradients are judged
    versions_after: list[int] = field(default_factory=list)
    part: Slice | None = None  # of a large call; None: only its device checks it
    aimed: Sequence[Slice] = ()  # of a suspect, the elements that differed
    judged: Sequence[tuple[RecordedCall, Slice]] = ()
    block: Block | None = None  # which the device computes again
    of_all: Tensor | None = None  # greatest magnitude of arguments and results, on the device
    # of a small call
    on_host: Call | None = None  # with copies of the arguments
    requires: Collection[int] = ()  # ids of the copies whose gradients are wanted
    random: eligibility.RandomState | None = None
    guards: Sequence[tuple[Tensor, Tensor]] = ()
    overlaps: Sequence[Overlap] = ()  # arguments that overlap in memory


@dataclass
class Counts:
    """How many large calls were judged by a sample, or only made views."""

    calls: int = 0
    views: int = 0


class OpAutoCompare(Observer):
    """Compares arguments, results and gradients of each call with the CPU's in float64.

    `mode`: every call, one of each signature, or a sample. `standard`: calibrated, allclose, torch,
    ascend or ulp. `background`: whether calls are judged in another thread; by default large ones
    are, and all of a GPU. `budget="25%"`: as many calls as fit into that share of the step's time.
    `bitwise=False`: float64 also for what is the CPU's own result, bit for bit. `whole=True`: large
    calls are judged in all their elements, not by a sample of them.
    """

    key = "AUTOCOMPARE"
    hook = "OpAutoCompareHook"
    wants_modules = True
    only_looks = False  # it runs kernels of its own, which an observer of kernels must not

    failures: list[Failure]
    compared: int  # calls

    def begin(self, options: Options) -> None:
        self._config = own = read_options(options)
        for setting in settings.table():
            if setting.name.startswith("AUTOCOMPARE_ERROR_TOLERANCE"):
                setting.get()  # a bad one raises an error before the program runs
        self.failures, self.compared, self.items = [], 0, 0
        self.counts = Counts()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._seen: set[Hashable] = set()
        self._calls: Counter[str] = Counter()
        self._reread: Counter[str] = Counter()
        self._differed = Differed()
        self._chance = random.Random(0)
        self._lock = threading.Lock()
        self._rows, self._saver = Rows(), Saver()
        self._patterns, self._suspects = Patterns(), Suspects()
        self._choosers = Chooser(), Chooser(scale=LARGER)  # of samples, and of those that confirm
        self.sees_once = own.mode == "signature"  # a suspect does not recur
        self._pace: Pace | None = None
        if own.background is not False and not own.shown and not self.sees_once:
            # with a budget the program waits for no verdict, and expensive operators do not delay
            # the verdicts on the others
            self._pace = Pace(None) if own.budget is None else Pace(0.0, most=1.0)
        pace = self._pace
        self._judges = None if pace is None else Judges(pace.background, at_once=is_remote())
        self._device_checks = DeviceChecks(self._suspects, self._report_nan, waits=pace is None)
        self.budget = None if own.budget is None else Budget(own.budget, self._is_idle)
        helper = native_library.helper() if self.sees_once else None
        self._known = helper and helper.SignatureFilter(1, dispatch.local)
        if own.mode == "every":
            self.selective = self.picks  # else it takes them all, and `selects` is not called

    # Which calls.

    def direct(self, plan: Plan) -> Callable[..., Any] | None:
        """A native function that leaves out calls of a signature that has been compared."""
        if self._known is None or self._config.recheck or self.picks:
            return None
        return self._known.around(plan.name, partial(dispatch.run, plan))  # type: ignore[no-any-return]

    def selects(self, call: Call) -> bool:
        return super().selects(call) and self._chosen(call)

    def _chosen(self, call: Call) -> bool:
        options = self._config
        if options.mode == "every":
            return True
        with self._lock:
            if options.mode == "sample":
                self._calls[call.name] += 1
                return (self._calls[call.name] - 1) % options.sample == 0
            shapes = signature((call.args, call.kwargs))
            key = call.direction, torch.is_grad_enabled(), call.name, shapes
            if key not in self._seen:
                self._seen.add(key)
                return True
            return self._chance.random() < options.recheck

    # Around a call.

    def so_far(self) -> str:
        return _(", {count} wrong").format(count=len(self.failures))

    def before(self, call: Call) -> _State | None:
        with _outside_of_graph():
            if graph_capture.is_capturing():  # to read a value would end the capture
                self.skip(call, _("a graph is being captured, and no value is computed"))
                return None
            with self._lock:
                self._patterns.before(call)
            suspect = self._suspects.claim(call)
            wants = self.budget is None or suspect is not None or self.budget.wants(call.name)
            if not wants:
                self.skip(call, BEYOND)
                return None
            with self._timed():
                return self._before(call, suspect)

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        if state is not None:
            with _outside_of_graph(), self._timed():
                self._after(state, result)

    def _timed(self) -> AbstractContextManager[None]:
        """Count the time inside of the block for the budget."""
        return nullcontext() if self.budget is None else self.budget.counted()

    def _before(self, call: Call, suspect: Suspect | None) -> _State | None:
        reason = eligibility.unfit(call)
        if reason:
            self.skip(call, reason)
            return None
        confirms = suspect is not None
        is_large = not self._config.whole and call.level != "module" and slices.is_large(call)
        is_large = is_large and not (confirms and slices.is_affordable(call))
        transfer = Transfer(not confirms and self._is_late(call, is_large))
        is_view = op_names.is_view(call.name, call.args)
        state = _State(call, is_large, is_view, confirms, eligibility.versions(call), transfer)
        has_gradients = True
        if is_large:
            if not is_view and (confirms or self._has_time(call)) and not self._slice(state):
                return None
            if suspect is not None:
                parts = (slices.slice_of(call, aim) for aim in suspect.aims)
                state.aimed = [part for part in parts if part is not None]
            in_part = state.part is not None and any(state.part.gradients)
            has_gradients = in_part or device_checks.has_products(call)
        elif transfer.is_late and not self._config.background and not self._has_time(call):
            return None
        elif not is_view:  # the arguments of a view, which it does not write, are copied after it
            state.random = eligibility.random_state(call, inputs.device_of(call))
            state.on_host, state.requires = inputs.copied(call, transfer.copy)
            state.guards = aliasing.guards(call)
            state.overlaps = overlaps(call.inputs)
        if has_gradients and call.level != "aten":
            arguments = gradients.arguments(call)
            state.arguments = arguments if arguments.wanted else None
        return state

    def _slice(self, state: _State) -> bool:
        """Choose the slice of a large call that is judged; False: there is no rule for the call."""
        choose = self._choosers[state.confirms]
        if self.budget is not None and not state.confirms:
            choose.scale = self.budget.scale
        state.part = slices.slice_of(state.call, choose)
        if state.part is None:
            self.skip(state.call, NO_RULE)
            return False
        if not state.confirms:
            state.block = self._device_checks.block(state.call)
        return True

    def _after(self, state: _State, result: Any) -> None:
        call, results = state.call, tensor_list(result)
        reason = eligibility.kind(results)
        if reason:
            self.skip(call, reason)
            return
        if not any(tensor.requires_grad for tensor in results):
            state.arguments = None
        state.versions_after = eligibility.versions(call)
        wrote = eligibility.writes(call, state.versions, state.versions_after)
        record = self._after_large if state.is_large else self._after_small
        is_recorded, recorded = record(state, result, results, wrote)
        if not is_recorded:
            return
        if state.arguments is not None:
            self._watch(state, state.arguments, recorded, result)
        if not state.is_large or wrote:
            return
        if state.confirms:
            for part in self._device_checks.faulty_slices(call, result):
                self._judge_slice(state, part, result, results, wrote=False)
        elif self.sees_once:  # the call, which wrote nothing, is judged again
            suspect = self._suspects.claim(call)
            second = None if suspect is None else self._before(call, suspect)
            if second is not None:
                self._after(second, result)

    def _after_small(
        self, state: _State, result: Any, results: list[Tensor], wrote: bool
    ) -> tuple[bool, RecordedCall | None]:
        """Judge a call as a whole; False: it is not judged."""
        call, transfer = state.call, state.transfer
        shown = self._config.shown
        is_copy = not aliasing.lies_in_arguments(result, call)
        if state.is_view:
            if wrote or op_names.sounds_in_place(call.name):
                return False, None  # it turns its argument into a view of itself
            copy = transfer.copy if shown or is_copy else eligibility.outline
            state.on_host, state.requires = inputs.copied(call, copy)
        assert state.on_host is not None
        device = inputs.device_of(call)
        if state.random is not None and not eligibility.drew_nothing(state.random, call, device):
            self.skip(call, _("random operators cannot be compared"))
            return False, None
        rerun = self._rerun(call, state.on_host, state.requires, wrote, results)
        rerun.overlaps = state.overlaps
        rerun.draws_nothing = state.is_view or state.random is not None
        rows = device_rows(call, result) if shown else ()
        recorded = RecordedCall(rerun, None, [], state.arguments is not None, str(device), rows)
        if not wrote and not rows and not is_copy:  # nothing was computed
            with self._lock:
                self.compared += 1
            return True, recorded
        aliasing.wait_for_host(device, result)
        unwritten = eligibility.unwritten(call, state.versions, state.versions_after)
        unread = set() if self._rereads(call) else unwritten
        copies = host_transfer.Copies(transfer.copy)
        recorded.result = copies.of(result)
        recorded.after = [
            None if at in unread else copies.of(tensor) for at, tensor in enumerate(call.inputs)
        ]
        self._judge(recorded, transfer, overrun=aliasing.overrun(state.guards))
        return True, recorded

    def _after_large(
        self, state: _State, result: Any, results: list[Tensor], wrote: bool
    ) -> tuple[bool, RecordedCall | None]:
        """Judge a slice of a call, and launch the checks of its device; False: it is not judged."""
        call = state.call
        if state.is_view:
            own = {tensor.untyped_storage()._cdata for tensor in call.inputs}
            if all(tensor.untyped_storage()._cdata in own for tensor in results):
                with self._lock:
                    self.counts.views += 1
                return False, None
            if not self._has_time(call) or not self._slice(state):
                return False, None
        if wrote and state.part is not None and state.part.written is None:
            self.skip(call, NO_RULE)
            return False, None
        aliasing.wait_for_host(inputs.device_of(call), result)
        recorded = None
        if state.part is not None:
            parts = [state.part, *state.aimed]
            found = [self._judge_slice(state, part, result, results, wrote) for part in parts]
            pairs = zip(found, parts, strict=True)
            state.judged = [(one, part) for one, part in pairs if one is not None]
            recorded = found[0]
            with self._lock:
                self.counts.calls += recorded is not None
        if not state.confirms:
            checks = self._device_checks
            state.of_all = checks.check(call, result, wrote, state.block, recorded)
        return True, recorded

    def _judge_slice(
        self, state: _State, part: Slice, result: Any, results: list[Tensor], wrote: bool
    ) -> RecordedCall | None:
        """Copy a slice to the host, to be judged there; None: too many are pending."""
        call, transfer = state.call, Transfer(state.transfer.is_late)
        small, requires = part.copied(call, transfer.copy)
        rerun = self._rerun(call, small, requires, wrote, results)
        rerun.draws_nothing = True  # no rule is for a call that draws
        after: Sequence[Tensor | None] = [None] * len(small.inputs)
        if part.written is not None:
            after = [None if t is None else transfer.copy(t) for t in part.written()]
        own = host_transfer.mapped(part.result(result), transfer.leaf)
        recorded = RecordedCall(rerun, own, after, bool(requires), str(inputs.device_of(call)))
        recorded.key, recorded.sampled = key_of(call), not state.confirms
        if not part.is_result_judged:
            transfer.launched()
            return recorded
        return recorded if self._judge(recorded, transfer) else None

    def _rerun(
        self,
        call: Call,
        on_host: Call,
        requires: Collection[int],
        wrote: bool,
        results: Sequence[Tensor],
    ) -> Rerun:
        autocast = eligibility.autocast_of(inputs.device_of(call))
        rerun = make_rerun(on_host, requires, wrote, autocast, [one.dtype for one in results])
        rerun.precision = precision.now(call)
        return rerun

    def _rereads(self, call: Call) -> bool:
        """Whether arguments that a call should not write are copied after it, too: in the first
        calls of each operator and then in some, because it costs as much as all other copies.
        """
        if self._config.shown or "batch_norm" in call.name:  # its writes are not counted
            return True
        with self._lock:
            self._reread[call.name] += 1
            number = self._reread[call.name]
        return number <= REREAD_FIRST or number % REREAD_EVERY == 0

    # Gradients.

    def _watch(
        self,
        state: _State,
        arguments: gradients.Arguments,
        recorded: RecordedCall | None,
        result: Any,
    ) -> None:
        """Judge the gradients of a call in its backward pass.

        The hooks live as long as the graph. They hold no tensor of the device but the factors of
        products, blocks, and a number; the backward pass releases the factors and blocks.
        """
        call, transfer = state.call, Transfer(state.transfer.is_late)
        guard = dispatch.guard(self, call)
        header = call.with_arguments((), {})
        take: Callable[[Tensor], Tensor] = transfer.copy
        judge: Callable[[Gradients], object]
        if not state.is_large:
            assert recorded is not None
            judge = partial(self._judge, recorded, transfer)
            if recorded.rows:
                take = partial(_described, recorded)
        else:
            take = Tensor.detach  # a part of it is copied when the call has all its gradients
            blocks = [one for one in (state.block,) if one is not None and one.requires]
            judge = _LargeGradients(
                self,
                header,
                key_of(call),
                recorded,
                [(one, part.result, part.gradients) for one, part in state.judged],
                device_checks.gradient_products(call),
                blocks,
                state.of_all,
                transfer,
                self._choosers[state.confirms],
                state.confirms,
                eligibility.autocast_of(inputs.device_of(call)) is not None,
            )

        def done(found: Gradients) -> None:
            if not found.complete:
                self.skip(header, gradients.PART)
                return
            with self._timed():
                judge(found)

        gradients.watch(call, arguments, result, take, guard(done), guard)

    # Judging; in the thread of the call, or in the background.

    def _is_late(self, call: Call, is_large: bool) -> bool:
        """Whether a call is judged in another thread: a large one, or where a copy to the host
        would wait for the device.
        """
        if self._pace is None:
            return False
        device = inputs.device_of(call)
        return is_large or bool(self._config.background) or not statistics.kind_is_seen(device.type)

    def _is_idle(self) -> bool:
        """Whether no call is pending."""
        return self._pace is None or self._pace.background.pending() == 0

    def _has_time(self, call: Call) -> bool:
        """Whether a call is judged in another thread: not all are, where too many are pending."""
        if self._pace is None or self._pace.wants(call):
            return True
        self.skip(call, BEHIND)
        return False

    def _judge(
        self,
        recorded: RecordedCall,
        transfer: Transfer,
        gradients: Gradients | None = None,
        overrun: str = "",
    ) -> bool:
        """Judge a call or its gradients, once their copies are on the host; False: too many calls
        are pending.
        """

        def work() -> None:
            # the modes of the program (a FlopCounterMode) do not see the calls of the tool, whose
            # own mode, which perturbs a call to find its rounding, has to work inside
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                transfer.wait()
                self._decide(recorded, gradients, overrun)

        transfer.launched()
        if self._pace is None or not transfer.is_late:
            work()
            return True
        call = recorded.call
        later = partial(dispatch.guarded, self, call, work)
        if self._pace.offer(call.name, later, waits=bool(self._config.background)):
            return True
        self.skip(call, BEHIND)
        return False

    def _decide(
        self, recorded: RecordedCall, gradients: Gradients | None = None, overrun: str = ""
    ) -> None:
        """Compute and record the verdict on each part of a call, or on its gradients."""
        options, call = self._config, recorded.call
        bitwise = options.bitwise and options.standard == "calibrated" and not options.shown
        job = Job(recorded, gradients, options.standard, bitwise)
        try:
            judges = self._judges
            items = job.items(self._differed) if judges is None else judges.items(job)
        except NoReferenceError as error:
            self.skip(call, str(error))
            return
        if overrun:
            items.append(Item("memory", host_verdicts.beyond_memory(overrun)))
        if options.shown:
            items = show(recorded, gradients, items)
        # a result that is an argument written in place is one thing that is wrong, not two
        wrong = list({id(item.verdict): item for item in items if not item.verdict.passed}.values())
        reported = self._confirmed(recorded, wrong)
        is_backward = gradients is not None or bool(recorded.label)
        with self._lock:
            self.compared += not is_backward
            saved = self._saver.save(recorded, gradients) if reported else ""
            direction = "backward" if is_backward else "forward"
            self._record(call, direction, items, reported, saved, passed=not wrong)

    def _confirmed(self, recorded: RecordedCall, wrong: list[Item]) -> list[Item]:
        """The parts to report as wrong: none of a sample, which makes a suspect."""
        if not recorded.sampled:
            self._suspects.judged(recorded.key or key_of(recorded.call), not wrong)
            return wrong
        # a call with a NaN does not recur with finite arguments: its sample has to do
        certain = [item for item in wrong if _is_nan_alone(item)]
        if wrong and not certain:
            item, message = wrong[0].label, wrong[0].verdict.message
            self._suspects.add(recorded.call, recorded.key, item, message, non_finite=False)
        return certain

    def _report_nan(self, call: Call, label: str, outline: Tensor, message: str) -> None:
        """Report a NaN that cannot be right; only the first calls of a run have finite inputs."""
        item = Item(label, verdict.refused("finite", message, outline))
        direction = call.direction if label == "output" else "backward"
        with self._lock:
            self._record(call, direction, [item], [item], "", passed=False)

    def _record(
        self,
        call: Call,
        direction: str,
        items: Sequence[Item],
        wrong: Sequence[Item],
        saved: str,
        passed: bool,
    ) -> None:
        self._patterns.judged(call.name, call.id, passed)
        self.items += len(items)
        self.failures.extend(Failure.of(call, direction, item, saved) for item in wrong)
        self._rows.add(call, direction, items)

    def pattern(self, name: str) -> str:
        """The property that the wrong calls of an operator share; empty: none is known."""
        return self._patterns.of(name)

    def skip(self, call: Call, reason: str) -> None:
        with self._lock:
            self.skipped[reason, call.name] += 1

    # The end.

    def samples(self) -> list[str]:
        """Lines of the summary about large calls and the budget."""
        lines = []
        if self.counts.calls:
            sampled = _(
                "OpAutoCompare: {calls} large {calls:call was|calls were} judged by a sample"
            )
            lines.append(sampled.format(calls=self.counts.calls))
        suspect = _("OpAutoCompare: suspect, not confirmed by a whole call: {text}")
        lines += [suspect.format(text=text) for text in self._suspects.unconfirmed()[:SHOWN]]
        return lines if self.budget is None else [*lines, "OpAutoCompare: " + str(self.budget)]

    def finish(self, started: Started) -> None:
        with dispatch.unseen():
            self._device_checks.finish()
        if self._pace is not None:
            self._pace.background.close()
        if self._judges is not None:
            self._judges.close()
        self._rows.close()
        self.compared += self.counts.views
        show_summary(self, started, self.failures, self._rows.path)


@dataclass(frozen=True, slots=True)
class _LargeGradients:
    """Judges the gradients of a large call: slices of them, a block, and tiles of products.

    The gradients of a call that was not sampled are checked by the device alone.
    """

    tool: OpAutoCompare
    call: Call  # without arguments
    key: Hashable
    recorded: RecordedCall | None
    parts: Sequence[tuple[RecordedCall, Callable[[Any], Any], Sequence[Taker | None]]]
    products: list[Callable[[Gradients], GradientProduct | None]]
    blocks: list[Block]  # one, or none
    of_all: Tensor | None
    transfer: Transfer
    choose: Chooser
    confirms: bool
    is_rounded: bool  # by autocast

    def __call__(self, gradients: Gradients) -> None:
        recorded, transfer = self.recorded, self.transfer
        for sample, of_result, of_arguments in self.parts:
            if not sample.wants_gradient:
                continue
            flown = [_part(of_result, one, transfer) for one in gradients.outputs]
            pairs = zip(of_arguments, gradients.inputs, strict=False)
            into = [_part(take, one, transfer) for take, one in pairs]
            into += [None] * (len(sample.call.inputs) - len(into))  # that only the slice has
            self.tool._judge(sample, transfer, Gradients(flown, into, True))
        checks = self.tool._device_checks
        if not self.confirms:
            block = self.blocks.pop() if self.blocks else None
            checks.check_gradients(self.call, self.key, recorded, gradients, block, self.of_all)
        products = [product for product in (one(gradients) for one in self.products) if product]
        self.products.clear()
        for product in products:
            if recorded is not None:
                self._judge_tile(recorded, product, self.choose)
            if not self.is_rounded and not self.confirms:
                checks.check_product(self.call, self.key, recorded, product)
            elif self.confirms and recorded is not None:
                aim = device_checks.worst_of_product(product.call(self.call), product.result)
                if aim is not None:
                    self._judge_tile(recorded, product, aim)

    def _judge_tile(
        self, recorded: RecordedCall, product: GradientProduct, choose: Chooser
    ) -> None:
        """Judge a tile of the product that a gradient is."""
        factors, result = product.tile(choose)
        copy = self.transfer.copy
        call = recorded.call.with_arguments(tuple(map(copy, factors)), {})
        call.func = _times
        rerun = make_rerun(call, (), False, None, [result.dtype])
        rerun.rounded, rerun.precision = recorded.rerun.rounded, recorded.rerun.precision
        rerun.draws_nothing = True
        tile = RecordedCall(rerun, copy(result), [None, None], False, recorded.device)
        tile.sampled, tile.label, tile.key = recorded.sampled, product.label, recorded.key
        self.tool._judge(tile, self.transfer)


def _part(take: Taker | None, gradient: Tensor | None, transfer: Transfer) -> Tensor | None:
    return None if take is None or gradient is None else transfer.copy(take(gradient))


def _times(left: Tensor, right: Tensor, bias: None = None) -> Tensor:
    """A product that may be called as the operator that it is a gradient of."""
    return torch.matmul(left, right)


def _described(recorded: RecordedCall, gradient: Tensor) -> Tensor:
    """A copy of a gradient whose row of a table shows the gradient on its device."""
    copy = host_transfer.host_copy(gradient)
    recorded.on_device[id(copy)] = terminal.tensor_rows("", gradient)[0][1:]
    return copy


def _is_nan_alone(item: Item) -> bool:
    """Whether a wrong result is NaN where the reference, of the same arguments, is finite."""
    result, expected = item.verdict.result, item.verdict.expected
    is_nan = isinstance(result, float) and math.isnan(result)
    return is_nan and isinstance(expected, (int, float)) and math.isfinite(expected)


@contextmanager
def _outside_of_graph() -> Iterator[None]:
    """Outside of the graph; tensors made in inference mode cannot be worked with outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield
