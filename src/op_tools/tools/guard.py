# SPDX-License-Identifier: Apache-2.0
"""Guard: always on, for the whole training, at about 1 % of the time; finds wrong results.

It intercepts the kernels of some training steps, and nothing in the others. In such a step it
checks a random part of the calls on the device, waiting for nothing: products by a random
projection (`op_tools.compare.projection`), all others for NaN and Inf out of finite arguments. A
finding is a suspect first. The next call of the same operator, shapes, module and line is judged on
the host: only that makes it a confirmed finding.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from deeplink import settings
from deeplink.console import console
from deeplink.errors import DeeplinkError, SettingError
from deeplink.i18n import _, joined
from op_tools.compare import eligibility, inputs, precision, projection
from op_tools.compare.device_checks import are_finite
from op_tools.compare.failure_store import Saver
from op_tools.compare.host_verdicts import RecordedCall
from op_tools.compare.problems import Patterns, write
from op_tools.compare.rerun import make_rerun
from op_tools.compare.suspects import key_of
from op_tools.core import (
    dispatch,
    engine,
    graph_capture,
    op_names,
    output_paths,
    step_counter,
    terminal,
    tool_errors,
)
from op_tools.core.call import Call, Direction, tensor_list
from op_tools.core.options import Options
from op_tools.core.problem import Problem, run_command
from op_tools.core.tool import Observer, Started
from op_tools.tensors import host_transfer
from op_tools.tools.overflow import has_infinity

CHECKS = 64  # calls that are checked in a step: of products, and of other operators
FIRST = 0.25  # share of the calls of the first step, in which their number is not known
WARM = 4  # steps before the second one that is watched; those between say how long a step takes
WAITS = 4  # steps in which the next call of a suspect is expected
LONGEST = 1 << 16  # steps without a check at most
COUNTS = "watched steps products others confirmed".split()  # of the summary
EACH = 3  # findings of an operator that are shown and saved; all are counted

OnFinding = Literal["warn", "stop"] | Callable[["Finding"], None]


class GuardError(DeeplinkError):
    """Guard found a wrong result, and is set to stop the run."""


@dataclass(frozen=True)
class Finding:
    """A call whose result is wrong."""

    operator: str
    device: str
    rank: int
    step: int
    direction: Direction
    module: str
    where: str  # the line of the program
    text: str  # what is wrong
    confirmed: bool  # by the host, at another call of the same kind
    saved: str = ""  # the folder of the call, for run_op_from_data
    pattern: str = ""  # what the wrong calls of the operator have in common

    @property
    def problem(self) -> Problem:
        """The verdict, in the form of all tools."""
        what = _("{operator}, {direction}: {text}").format(**vars(self))
        place = _("rank {rank}, {device}, step {step}").format(**vars(self))
        module = _(", module {module}").format(module=self.module) if self.module else ""
        where = _("{where} ({place}{module})").format(where=self.where, place=place, module=module)
        if not self.confirmed:
            return Problem(what, where)
        confirmed = _("A later call of the same kind is wrong too, by a rerun on the CPU.")
        evidence = tuple(filter(None, (self.pattern, confirmed)))
        replay = f"python -m op_tools.run_op_from_data {self.saved} --acc_check"
        workaround = run_command("fallback", self.operator)
        return Problem(what, where, evidence, workaround, replay if self.saved else "")

    def __str__(self) -> str:
        kind = _("wrong result") if self.confirmed else _("suspect, not confirmed by a later call")
        title = _("Guard: {kind}").format(kind=kind)
        return joined("\n  ", [title, *self.problem.lines()])


@dataclass
class _Suspect:
    """A check that failed on the device."""

    finding: Finding
    is_product: bool
    until: int  # the last step in which the next call of the kind is expected
    is_running: bool = False  # that call
    failed: list[int] = field(default_factory=list)  # the ids of its calls whose check failed


@dataclass(frozen=True)
class _State:
    """A call between its start and its end."""

    on_host: Call | None = None  # with copies of its arguments: the call is judged there
    greatest: Tensor | None = None  # of the arguments, of a call that writes one


class Guard(Observer):
    """Checks a random share of the calls of some steps, for the whole training.

    `budget`: the share of the time that it may cost, 0.01 unless given. `on_finding`: "warn",
    "stop" (a GuardError from the optimizer's step) or a function of a Finding.
    """

    key = "GUARD"
    hook = "OpGuardHook"
    excluded = op_names.UNINITIALISED
    wants_modules = True
    only_looks = False  # it runs kernels of its own

    findings: list[Finding]  # that were confirmed, the first EACH of each operator
    suspects: list[Finding]  # whose next call was right, or did not come, as many

    def __init__(self, *lists: Sequence[str] | str | None, **options: Any) -> None:
        super().__init__(*lists, level="aten", **options)

    def begin(self, options: Options) -> None:
        budget, self._on_finding = _options(options)
        self.findings, self.suspects = [], []
        self.products = self.others = self.cleared = 0
        self.steps = self.watched = 0
        self._random = random.Random(settings.rank())
        self._counts: Counter[bool] = Counter()  # calls of this step: of products, of others
        self._shares = {True: FIRST, False: FIRST}
        self._checks = projection.Checks(self._note)
        self._suspects: dict[Hashable, _Suspect] = {}
        self._judged: set[Hashable] = set()
        self._confirmed: set[Hashable] = set()  # of those
        self._patterns = Patterns(every=True)
        self._wrong: Counter[str] = Counter()  # calls that were confirmed, by operator
        self._doubtful: Counter[str] = Counter()
        self._unreported: list[Finding] = []
        self._saver, self._lock = Saver(), threading.Lock()
        self._clock = _Clock(budget)
        self._engaged = True  # the first step is watched
        self.selective = True

    # Life. A step that is not watched costs a call of `_stepped`.

    def start(self) -> Self:
        if self._active is None:
            super().start()
            step_counter.count(True, self._stepped)
            self._clock.start()
        return self

    def stop(self) -> None:
        if self._active is not None:
            step_counter.count(False, self._stepped)
            with dispatch.unseen():
                self._guarded(self._collect)
            super().stop()

    def _stepped(self, step: int) -> None:
        """After a step, read the checks, and decide whether the next step is watched."""
        if self._active is None:
            return
        with dispatch.unseen():
            self._guarded(self._next, step)
        self._clock.start()
        self._report()

    def _next(self, step: int) -> None:
        self.steps += 1
        self.watched += self._engaged
        self._clock.stop(self._engaged)
        if self._engaged:
            for kind in (True, False):
                seen = self._counts[kind]
                self._shares[kind] = min(1.0, CHECKS / seen) if seen else FIRST
            self._counts.clear()
        self._checks.advance(at_once=True)
        self._drop_until(step)
        self._engage(bool(self._suspects) or self._clock.is_due(self.steps))

    def _engage(self, on: bool) -> None:
        if on != self._engaged:
            self._engaged = on
            (engine.start if on else engine.stop)(self)

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:  # a tool must not kill the program that it watches
            tool_errors.add("Guard", action.__name__, error)

    # Which calls.

    def selects(self, call: Call) -> bool:
        if getattr(call.func, "is_view", False) or not super().selects(call):
            return False
        kind = projection.covers(call)
        with self._lock:
            self._counts[kind] += 1
            if self._suspects:
                return _key(call) in self._suspects
            return self._random.random() < self._shares[kind]

    # Around a call.

    def before(self, call: Call) -> _State | None:
        if graph_capture.captures((call.device or eligibility.HOST).type)():
            return None
        with self._lock:
            suspect = self._suspects.get(_key(call)) if self._suspects else None
            if suspect is not None:
                if suspect.is_running:
                    return None
                suspect.is_running = True
            self._patterns.before(call)
        if suspect is not None:
            return _State(on_host=inputs.copied(call, host_transfer.host_copy)[0])
        return _State(greatest=projection.greatest(call.inputs) if _writes(call) else None)

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        if state is None:
            return
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            if state.on_host is not None:
                self._judge(call, state.on_host, result)
            else:
                self._check(call, state, result)
                self._checks.advance()

    def _check(self, call: Call, state: _State, result: Any) -> None:
        check = _key(call), call.id, _finding(call, _("NaN or Inf, of finite arguments"))
        product = projection.start(call, result)
        if product is not None:
            self.products += 1
            self._checks.add(check, product)
            return
        greatest = None if has_infinity(call) else projection.greatest(tensor_list(result))
        if greatest is None:
            return
        given = projection.greatest(call.inputs) if state.greatest is None else state.greatest
        number = greatest if given is None else greatest.where(given.isfinite(), 0.0)
        self._checks.add(check, None, [number.reshape(1)])
        self.others += 1

    # Verdicts.

    def _note(
        self,
        check: tuple[Hashable, int, Finding],
        product: projection.Finding | None,
        numbers: list[float],
    ) -> None:
        """Make a suspect of a call of which a check failed."""
        key, call, finding = check
        passed = product is None and all(map(math.isfinite, numbers))
        wrong = self._wrong[finding.operator]
        with self._lock:
            if passed or key in self._confirmed or wrong >= EACH:
                self._patterns.judged(finding.operator, call, passed)
        if passed:
            return
        if wrong >= EACH:
            self._wrong[finding.operator] += 1
        elif key not in self._judged:
            if product is not None:
                finding = replace(finding, text=product.message)
            suspect = _Suspect(finding, product is not None, step_counter.current() + WAITS)
            self._suspects.setdefault(key, suspect).failed.append(call)

    def _collect(self) -> None:
        """Read all checks. Suspects whose next call did not come are reported as such."""
        self._checks.advance(wait=True)
        self._drop_until(math.inf)

    def _drop_until(self, step: float) -> None:
        for key, suspect in list(self._suspects.items()):
            if step > suspect.until:
                self._drop(key, suspect)

    def _drop(self, key: Hashable, suspect: _Suspect, is_reported: bool = True) -> None:
        """Remove a suspect that the host has not confirmed."""
        self._suspects.pop(key, None)
        self._judged.add(key)
        self.cleared += not is_reported
        self._doubtful[suspect.finding.operator] += is_reported
        if is_reported and self._doubtful[suspect.finding.operator] <= EACH:
            self.suspects.append(suspect.finding)
            self._unreported.append(suspect.finding)

    def _judge(self, call: Call, on_host: Call, result: Any) -> None:
        """Judge a call of a suspect's kind on the host; waits for the device."""
        own = host_transfer.mapped(result, inputs.Transfer(is_late=False).leaf)
        results = tensor_list(own)
        types = [tensor.dtype for tensor in results]
        rerun = make_rerun(on_host, frozenset(), _writes(call), None, types)
        rerun.precision = precision.now(call)
        after = [None] * len(on_host.inputs)
        recorded = RecordedCall(rerun, own, after, False, str(call.device))
        product = projection.start(on_host, own)
        if product is not None:
            finding = product.verdict()
            text, is_doubtful = "" if finding is None else finding.message, True
        elif are_finite(results) or not are_finite(on_host.inputs):
            text, is_doubtful = "", not are_finite(on_host.inputs)
        else:
            text, is_doubtful = _not_finite(recorded, results), False
        with self._lock:
            key = _key(call)
            suspect = self._suspects.pop(key, None)
            if suspect is None:
                return
            self._judged.add(key)
            if text:
                self._confirmed.add(key)
                for failed in (*suspect.failed, call.id):
                    self._patterns.judged(call.name, failed, passed=False)
            elif not is_doubtful:
                self._patterns.judged(call.name, call.id, passed=True)
        if text:
            self._wrong[call.name] += 1
            if self._wrong[call.name] <= EACH:
                saved = self._saver.save(recorded, None)
                confirmed = replace(_finding(call, text), confirmed=True, saved=saved)
                self.findings.append(confirmed)
                self._unreported.append(confirmed)
        else:  # NaN and Inf once may come of the program's own numbers
            self._drop(key, suspect, is_reported=suspect.is_product or is_doubtful)

    def _report(self) -> None:
        """Report findings at the end of a step: not inside of a call."""
        found, self._unreported = list(map(self._explained, self._unreported)), []
        for finding in found:
            if not finding.confirmed or not callable(self._on_finding):
                console(stderr=True).print(str(finding), style="red", soft_wrap=True, markup=False)
        for finding in found:
            if finding.confirmed and callable(self._on_finding):
                self._on_finding(finding)
            elif finding.confirmed and self._on_finding == "stop":
                text = _("{operator}: {text}.").format(**vars(finding))
                raise GuardError(text, _("OP_GUARD_ON_FINDING=warn goes on."))

    def _explained(self, finding: Finding) -> Finding:
        """A finding with the pattern of all calls of its operator that were checked so far."""
        if not finding.confirmed:
            return finding
        with self._lock:
            return replace(finding, pattern=self._patterns.of(finding.operator))

    @property
    def confirmed(self) -> int:
        """Calls with a wrong result."""
        return self._wrong.total()

    def so_far(self) -> str:
        return _(", {confirmed} wrong").format(confirmed=self.confirmed)

    def finish(self, started: Started) -> None:
        self._unreported = []  # the summary has them
        self.findings = list(map(self._explained, self.findings))
        counts = {name: getattr(self, name) for name in COUNTS}
        total = _(
            "Guard: {watched} of {steps} {steps:step|steps} watched, {products} "
            "{products:product|products} and {others} other {others:call|calls} checked, "
            "{share:.1%} of the time; {confirmed} wrong {confirmed:result|results}"
        )
        lines = [total.format(share=self._clock.share, **counts)]
        lines += ["  " + str(finding) for finding in self.findings]
        others = _("  and {count} other {count:call|calls} of {operator}")
        for operator, count in self._wrong.items():
            if count > EACH:
                lines.append(others.format(count=count - EACH, operator=operator))
        lines += ["  " + str(finding) for finding in self.suspects]
        if self.cleared:
            cleared = _(
                "  {cleared} {cleared:call has|calls have} NaN or Inf of finite "
                "arguments on the CPU too"
            )
            lines.append(cleared.format(cleared=self.cleared))
        if self.findings:
            lines += self._written()
        terminal.summary(self, started, lines)

    def _written(self) -> list[str]:
        """Write the first finding of each operator, for `deeplink report`; return a line for it."""
        first = {finding.operator: finding.problem for finding in reversed(self.findings)}
        try:
            folder = output_paths.folder("op_guard_result")
            name = f"op_guard_info_pid{output_paths.owner(folder)}_{output_paths.stamp()}"
            path = output_paths.create(folder / f"{name}{output_paths.rank()}.json")
            write(path, first)
        except (OSError, SettingError) as error:  # a full disk: the findings are on the screen
            tool_errors.add("Guard", "findings", error)
            return []
        return [f"Guard: {path}"]


class _Clock:
    """How long steps take, and after how many the next one may be watched."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._plain = self._watched = self._elapsed = 0.0  # seconds; of a plain step, its mean
        self._plain_steps = self._watched_steps = 0
        self._begin = time.perf_counter()

    def start(self) -> None:
        self._begin = time.perf_counter()

    def stop(self, watched: bool) -> None:
        """A step is over."""
        took = time.perf_counter() - self._begin
        self._elapsed += took
        if not watched:
            self._plain_steps += 1
            self._plain += max(0.05, 1 / self._plain_steps) * (took - self._plain)
        elif self._plain_steps:  # the first steps are like no others
            self._watched_steps += 1
            self._watched += took

    @property
    def _spent(self) -> float:
        """Seconds that it took to watch steps."""
        return max(0.0, self._watched - self._watched_steps * self._plain)

    def is_due(self, step: int) -> bool:
        """Whether the next step is to be watched. The number of steps between two is a power of
        two, so that ranks, which wait for each other, watch the same steps.
        """
        if not self._watched_steps:
            return self._plain_steps >= WARM - 1 and step % WARM == 0
        wanted = self._spent / self._watched_steps / (self._budget * max(self._plain, 1e-9))
        gap = 1
        while gap < wanted and gap < LONGEST:
            gap *= 2
        return step % gap == 0

    @property
    def share(self) -> float:
        """Of the time since the first step."""
        return self._spent / self._elapsed if self._elapsed else 0.0


def _options(options: Options) -> tuple[float, OnFinding]:
    """The budget and the action on a finding; SettingError where they are not allowed."""
    more = {name: value for name, value in options.more.items() if value is not None}
    unknown = ", ".join(sorted(set(options.more) - {"budget", "on_finding"}))
    if unknown:
        text = _("Guard takes no {names}.").format(names=unknown)
        raise SettingError(text, _("it takes budget, on_finding."))
    budget = more["budget"] if "budget" in more else settings.OP_GUARD_BUDGET.get()
    on_finding: Any = settings.OP_GUARD_ON_FINDING.get()
    on_finding = more.get("on_finding", on_finding)
    try:
        share = settings.parse_share(str(budget))
    except ValueError as error:
        text = _("Guard: budget {budget!r}: {error}.").format(budget=budget, error=error)
        raise SettingError(text, _("for example 0.01.")) from None
    if on_finding not in ("warn", "stop") and not callable(on_finding):
        text = _("Guard: on_finding {on_finding!r} is not allowed.").format(on_finding=on_finding)
        raise SettingError(text, _('"warn", "stop" or a function.'))
    return share, on_finding


def _key(call: Call) -> Hashable:
    """The key of calls of the same kind."""
    return call.direction, key_of(call)


def _finding(call: Call, text: str) -> Finding:
    device = str(call.device or eligibility.HOST)
    place = settings.rank(), call.step, call.direction, call.module, call.where
    return Finding(call.name, device, *place, text, False)


def _writes(call: Call) -> bool:
    return bool(call.func._schema.is_mutable) if hasattr(call.func, "_schema") else False


def _not_finite(recorded: RecordedCall, results: list[Tensor]) -> str:
    """Describe the elements that are finite on the CPU alone; "": there are none."""
    if eligibility.unfit(recorded.call):
        return ""
    for one, reference in zip(results, recorded.reference().results, strict=False):
        if one.is_floating_point() and one.shape == reference.shape:
            fits = reference.abs() < torch.finfo(one.dtype).max
            bad = int((~one.isfinite() & reference.isfinite() & fits).sum())
            if bad:
                text = _(
                    "{bad} of {numel} {numel:element|elements} {bad:is|are} not finite, "
                    "but {bad:is|are} on the CPU"
                )
                return text.format(bad=bad, numel=one.numel())
    return ""
