# SPDX-License-Identifier: Apache-2.0
"""OpAutoCompare: each call again on the CPU in higher precision; results and gradients compared."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deeplink import settings
from deeplink.i18n import _
from deeplink.judge import verdict
from op_tools.compare import eligibility, host_verdicts, inputs, precision
from op_tools.compare.budget import Budget, Pace
from op_tools.compare.console import (
    Failure,
    Rows,
    device_rows,
    show_call,
    show_gradients,
    show_summary,
)
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.failure_store import Saver
from op_tools.compare.host_verdicts import Item, Taken
from op_tools.compare.inputs import Before
from op_tools.compare.judging import Job, Judges
from op_tools.compare.options import how, is_remote
from op_tools.compare.problems import Patterns
from op_tools.compare.rerun import again_of
from op_tools.compare.sampling import Counts, Sampled, Sampling
from op_tools.core import dispatch, gradients, graph_capture, native_library, op_names, terminal
from op_tools.core.call import Call, signature, tensor_list
from op_tools.core.dispatch import Plan
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.tensors import aliasing, host_transfer, statistics
from op_tools.tensors.overlap import overlaps

BEYOND = _("beyond the budget")
BEHIND = _("too many calls were waiting to be judged")


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
        self._how = how(options)
        for setting in settings.table():
            if setting.name.startswith("AUTOCOMPARE_ERROR_TOLERANCE"):
                setting.get()  # a bad one is told now
        self.failures, self.compared, self.items = [], 0, 0
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._seen: set[Hashable] = set()
        self._calls: Counter[str] = Counter()
        self._rereads = inputs.Rereads(always=self._how.shown)
        self._tried = host_verdicts.Tried()
        self._chance = random.Random(0)
        self._lock = threading.Lock()
        self._rows, self._saver = Rows(), Saver()
        self._patterns = Patterns()
        by_hand = self._how.background is False or self._how.shown
        share = self._how.budget
        self.sees_once = self._how.mode == "signature"  # a suspect does not come again
        self._pace = None if by_hand or self.sees_once else self._paced(share)
        pace = self._pace
        self._judges = None if pace is None else Judges(pace.background, at_once=is_remote())
        self.budget = None if share is None else Budget(share, self._is_idle)
        helper = native_library.helper() if self._how.mode == "signature" else None
        self._sampled = None if self._how.whole else Sampled(self)
        self._known = helper and helper.SignatureFilter(1, dispatch.local)
        if self._how.mode == "every":
            self.selective = self.picks  # else it takes them all, and need not be asked

    @staticmethod
    def _paced(share: float | None) -> Pace:
        """With a budget the program waits for no verdict, and expensive operators do not delay the
        verdicts on the others.
        """
        return Pace(None) if share is None else Pace(0.0, most=1.0)

    # Which calls.

    def direct(self, plan: Plan) -> Callable[..., Any] | None:
        """Natively, where a call of a signature that has been seen is none of our business."""
        if self._known is None or self._how.recheck or self.picks:
            return None
        return self._known.around(plan.name, partial(dispatch.run, plan))  # type: ignore[no-any-return]

    def selects(self, call: Call) -> bool:
        return super().selects(call) and self._chosen(call)

    def _chosen(self, call: Call) -> bool:
        if self._how.mode == "every":
            return True
        with self._lock:
            if self._how.mode == "sample":
                self._calls[call.name] += 1
                return self._calls[call.name] % self._how.sample == 1 or self._how.sample == 1
            key = (
                call.direction,
                torch.is_grad_enabled(),
                call.name,
                signature((call.args, call.kwargs)),
            )
            if key not in self._seen:
                self._seen.add(key)
                return True
            return self._chance.random() < self._how.recheck

    # Around a call.

    def so_far(self) -> str:
        return _(", {count} wrong").format(count=len(self.failures))

    def before(self, call: Call) -> Before | Sampling | None:
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            with _outside():
                return self.before(call)
        if graph_capture.is_capturing():  # to read a value would end the capture
            self.skip(call, _("a graph is being captured, and no value is computed"))
            return None
        with self._lock:
            self._patterns.before(call)
        sampled = self._sampled
        is_suspect = sampled is not None and sampled.suspects.takes(call)
        if self.budget is not None and not is_suspect and not self.budget.wants(call.name):
            self.skip(call, BEYOND)
            return None
        with self.timed():
            if sampled is not None and sampled.takes(call, is_suspect):
                return sampled.before(call, is_suspect)
            return self._before(call, at_once=is_suspect)

    def timed(self) -> AbstractContextManager[None]:
        """Counts the time inside of the block for the budget."""
        return nullcontext() if self.budget is None else self.budget.counted()

    def after(self, call: Call, state: Before | Sampling | None, result: Any) -> None:
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            with _outside():
                self.after(call, state, result)
        elif state is not None:
            with self.timed():
                if isinstance(state, Before):
                    self._after(call, state, result)
                elif self._sampled is not None:
                    self._sampled.after(state, result)

    def judge_again(self, call: Call, result: Any) -> None:
        """Judges a suspect that has just been made, and wrote no argument, as a whole."""
        assert self._sampled is not None
        if self._sampled.takes(call, is_suspect=True):
            self.after(call, self._sampled.before(call, is_suspect=True), result)
        else:
            self.after(call, self._before(call, at_once=True), result)

    def _before(self, call: Call, at_once: bool = False) -> Before | None:
        reason = eligibility.unfit(call)
        if reason:
            self.skip(call, reason)
            return None
        is_late = not at_once and self._is_late_when_small(call)
        if is_late and not self._how.background and not self.has_time(call):
            return None
        transfer = inputs.Transfer(is_late)
        versions = eligibility.versions(call)
        given = gradients.arguments(call) if call.level != "aten" else None
        if given is not None and not given.wanted:
            given = None
        if op_names.is_view(call.name, call.args):
            # it writes nothing, so that what is needed can be taken after it
            return Before(call, frozenset(), versions, given, [], transfer, is_view=True)
        random = eligibility.random_state(call, inputs.device_of(call))
        kept, requires = inputs.kept(call, transfer.copy)
        guards = aliasing.guards(call)
        state = Before(kept, requires, versions, given, guards, transfer, random=random)
        state.overlaps = overlaps(call.given)
        return state

    def _after(self, call: Call, state: Before, result: Any) -> None:
        made = [result] if isinstance(result, Tensor) else tensor_list(result)
        reason = eligibility.kind(made)
        if reason:
            self.skip(call, reason)
            return
        now = eligibility.versions(call)
        wrote = eligibility.writes(call, state.versions, now)
        if state.is_view:
            if wrote or op_names.sounds_in_place(call.name):
                return  # it turns its argument into a view of itself
            state = inputs.of_view(call, state, result, wanted=self._how.shown)
        device = inputs.device_of(call)
        drawn = state.random
        if drawn is not None and not eligibility.drew_nothing(drawn, call, device):
            self.skip(call, _("random operators cannot be compared"))
            return
        wants = state.given is not None and any(t.requires_grad for t in made)
        autocast, types = eligibility.autocast_of(device), [tensor.dtype for tensor in made]
        again = again_of(state.call, state.requires, wrote, autocast, types)
        again.overlaps = state.overlaps
        again.precision = precision.now(call)
        again.draws_nothing = state.is_view or state.random is not None
        taken = Taken(
            again,
            None,
            [],
            wants,
            str(device),
            device_rows(call, result) if self._how.shown else (),
        )
        # with OP_TOOLS_VERBOSE the tables have the values of views, too
        views = not wrote and not taken.rows and aliasing.lies_in_arguments(result, call)
        if views:  # nothing was computed
            with self._lock:
                self.compared += 1
        else:
            aliasing.wait_for_host(device, result)
            kept = (
                set() if self._rereads(call) else eligibility.unwritten(call, state.versions, now)
            )
            copies = host_transfer.Copies(state.transfer.copy)
            taken.result = copies.of(result)
            given = enumerate(call.given)
            taken.after = [None if at in kept else copies.of(tensor) for at, tensor in given]
            work = partial(self.forward, taken, aliasing.overrun(state.guards))
            self.judge(taken.call, state.transfer, work)
        if wants and state.given is not None:
            self._watch(call, state.given, result, taken, state.transfer.is_late)

    def _watch(
        self, call: Call, given: gradients.Arguments, result: Any, taken: Taken, is_late: bool
    ) -> None:
        transfer = inputs.Transfer(is_late)
        guard = dispatch.guard(self, taken.call)  # holds no tensor of the device
        on_device = taken.on_device

        def described(gradient: Tensor) -> Tensor:
            copy = host_transfer.host_copy(gradient)
            on_device[id(copy)] = terminal.tensor_rows("", gradient)[0][1:]
            return copy

        def done(found: gradients.Gradients) -> None:
            if not found.complete:
                self.skip(taken.call, gradients.PART)
                return
            with self.timed():
                self.judge(taken.call, transfer, partial(self.backward, taken, found))

        take: Callable[[Tensor], Tensor] = described if taken.rows else transfer.copy
        gradients.watch(call, given, result, take, guard(done), guard)

    # Comparing; in the thread of the call, or in the background.

    def is_late(self, device: torch.device | None) -> bool:
        """Whether large calls of a device are judged in another thread."""
        return self._pace is not None and device is not None

    def _is_idle(self) -> bool:
        """Whether no call is pending."""
        return self._pace is None or self._pace.background.pending() == 0

    def _is_late_when_small(self, call: Call) -> bool:
        """Whether a small call is judged there, too: where a copy to the host would wait."""
        if self._pace is None or call.device is None or self._how.background:
            return self._pace is not None
        return call.device.type != "cpu" and not statistics.kind_is_seen(call.device.type)

    def has_time(self, call: Call) -> bool:
        """Whether a call is judged in another thread: not all are, where too many are pending."""
        if self._pace is None or call.device is None or self._pace.wants(call):
            return True
        self.skip(call, BEHIND)
        return False

    def judge(self, call: Call, transfer: inputs.Transfer, work: Callable[[], None]) -> bool:
        """Judges a call, once its copies are on the host; False: too many calls are pending."""

        def plainly() -> None:
            # the modes of the program (a FlopCounterMode) do not see the calls of the tool, whose
            # own mode, which perturbs a call to find its rounding, has to work inside
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                transfer.wait()
                work()

        transfer.launched()
        if self._pace is None or not transfer.is_late:
            plainly()
            return True
        later = partial(dispatch.guarded, self, call, plainly)
        if self._pace.offer(call.name, later, waits=bool(self._how.background)):
            return True
        self.skip(call, BEHIND)
        return False

    def forward(self, taken: Taken, overrun: str) -> None:
        try:
            items = self._items(taken, None)
        except NoReferenceError as error:
            self.skip(taken.call, str(error))
            return
        if overrun:
            items.append(Item("memory", host_verdicts.beyond_memory(overrun)))
        if self._how.shown:
            items = host_verdicts.with_values(taken.call, items)
            show_call(taken, items)
        with self._lock:
            self.compared += not taken.label  # else it is a gradient of a call that was counted
        self._record(taken, "backward" if taken.label else "forward", items, None)

    def backward(self, taken: Taken, found: gradients.Gradients) -> None:
        try:
            items = self._items(taken, found)
        except NoReferenceError as error:
            self.skip(taken.call, str(error))
            return
        if self._how.shown and items:
            items = host_verdicts.with_missing(taken.call, found.inputs, items)
            show_gradients(taken, found, items)
        self._record(taken, "backward", items, found)

    def _items(self, taken: Taken, found: gradients.Gradients | None) -> list[Item]:
        """The verdict on each part of a call, or on its gradients."""
        how = self._how
        bitwise = how.bitwise and how.standard == "calibrated" and not how.shown
        job = Job(taken, found, how.standard, bitwise)
        return job.items(self._tried) if self._judges is None else self._judges.items(job)

    def _record(
        self,
        taken: Taken,
        direction: str,
        items: list[Item],
        found: gradients.Gradients | None,
    ) -> None:
        call = taken.call
        # a result that is an argument written in place is one thing that is wrong, not two
        by_verdict = {id(item.verdict): item for item in items if not item.verdict.passed}
        wrong = list(by_verdict.values())
        if self._sampled is not None:
            wrong = list(self._sampled.judged(taken, wrong))
        with self._lock:
            saved = self._saver.save(taken, found) if wrong else ""
            self._patterns.judged(call, passed=not by_verdict)
            self.items += len(items)
            self.failures.extend(Failure.of(call, direction, item, saved) for item in wrong)
            self._rows.add(call, direction, items)

    def report_nan(self, call: Call, label: str, made: Tensor, message: str) -> None:
        """Reports a NaN that cannot be right; only the first calls of a run have finite inputs."""
        item = Item(label, verdict.refused("finite", message, made))
        direction = call.direction if label == "output" else "backward"
        with self._lock:
            self.failures.append(Failure.of(call, direction, item, ""))
            self._patterns.judged(call, passed=False)
            self._rows.add(call, direction, [item])

    def pattern(self, name: str) -> str:
        """What the wrong calls of an operator have in common; empty: nothing that is known."""
        return self._patterns.of(name)

    def skip(self, call: Call, reason: str) -> None:
        with self._lock:
            self.skipped[reason, call.name] += 1

    @property
    def counts(self) -> Counts:
        """How many calls were judged by a sample."""
        return Counts() if self._sampled is None else self._sampled.counts

    def samples(self) -> list[str]:
        """What the summary says of calls that were judged by a sample."""
        lines = self._sampled.summary() if self._sampled is not None else []
        return lines if self.budget is None else [*lines, f"OpAutoCompare: {self.budget}"]

    def finish(self, started: Started) -> None:
        if self._sampled is not None:
            with dispatch.unseen():
                self._sampled.finish()
        if self._pace is not None:
            self._pace.background.close()
        if self._judges is not None:
            self._judges.close()
        self._rows.close()
        if self._sampled is not None:
            self.compared += self._sampled.counts.views
        show_summary(self, started, self.failures, self._rows.path)


@contextmanager
def _outside() -> Iterator[None]:
    """Outside of the graph; tensors made in inference mode cannot be worked with outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield
