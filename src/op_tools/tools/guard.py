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
from dataclasses import dataclass, replace
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
from op_tools.compare.rerun import make_rerun
from op_tools.compare.suspects import key_of
from op_tools.core import (
    dispatch,
    engine,
    graph_capture,
    op_names,
    step_counter,
    terminal,
    tool_errors,
)
from op_tools.core.call import Call, Direction, tensor_list
from op_tools.core.options import Options
from op_tools.core.problem import Problem, run_command
from op_tools.core.tool import Observer, Started
from op_tools.tensors import host_transfer
from op_tools.tools.overflow import meant

CHECKS = 64  # calls that are checked in a step: of products, and of other operators
FIRST = 0.25  # share of the calls of the first step, in which their number is not known
WARM = 4  # steps before the second one that is watched; those between say how long a step takes
WAITS = 4  # steps in which the next call of a suspect is looked for
LONGEST = 1 << 16  # steps without a check at most
EACH = 3  # findings of an operator that are shown and saved; all are counted

OnFinding = Literal["warn", "stop"] | Callable[["Finding"], None]


class GuardError(DeeplinkError):
    """Guard found a wrong result, and was asked to stop the run."""


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

    def __str__(self) -> str:
        kind = _("wrong result") if self.confirmed else _("suspect, not confirmed by a later call")
        place = _("rank {rank}, {device}, step {step}, {direction}").format(
            rank=self.rank, device=self.device, step=self.step, direction=self.direction
        )
        module = _(", module {module}").format(module=self.module) if self.module else ""
        workaround = run_command(f"--fallback {self.operator}") if self.confirmed else ""
        replay = f"python -m op_tools.run_op_from_data {self.saved} --acc_check"
        confirmed = _("A later call of the same kind is wrong too, by a rerun on the CPU.")
        problem = Problem(
            self.text,
            _("{where} ({place}{module})").format(where=self.where, place=place, module=module),
            (confirmed,) if self.confirmed else (),
            workaround,
            replay if self.saved else "",
        )
        return joined(
            "\n  ",
            [
                _("Guard: {kind}: {operator}").format(kind=kind, operator=self.operator),
                *problem.lines(),
            ],
        )


@dataclass
class _Suspect:
    """A check that failed on the device."""

    finding: Finding
    is_product: bool
    until: int  # the last step in which the next call of the kind is looked for
    taken: bool = False  # that call is under way


@dataclass(frozen=True)
class _Check:
    """What was checked on the device. It holds no tensor of the call."""

    key: Hashable
    finding: Finding  # if it turns out so


@dataclass(frozen=True)
class _State:
    """What is known of a call from before it."""

    kept: Call | None = None  # with copies on the host: the call is judged there
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
        self._budget, self._on_finding = _asked(options)
        self.findings, self.suspects = [], []
        self.products = self.others = self.cleared = 0
        self.steps = self.watched = 0
        self._random = random.Random(settings.rank())
        self._counts: Counter[bool] = Counter()  # calls of this step: of products, of others
        self._shares = {True: FIRST, False: FIRST}
        self._checks = projection.Checks(self._note)
        self._suspects: dict[Hashable, _Suspect] = {}
        self._judged: set[Hashable] = set()
        self._wrong: Counter[str] = Counter()  # calls that were confirmed, by operator
        self._doubtful: Counter[str] = Counter()
        self._unreported: list[Finding] = []
        self._saver, self._lock = Saver(), threading.Lock()
        self._clock = _Clock(self._budget)
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
        """A step is over: read what is there, and decide whether the next one is watched."""
        if self._active is None:
            return
        with dispatch.unseen():
            self._guarded(self._next, step)
        self._clock.start()
        self._tell()

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
                if suspect.taken:
                    return None
                suspect.taken = True
        if suspect is not None:
            return _State(kept=inputs.copied(call, host_transfer.host_copy)[0])
        return _State(greatest=projection.greatest(call.given) if _writes(call) else None)

    def after(self, call: Call, state: _State | None, result: Any) -> None:
        if state is None:
            return
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            if state.kept is not None:
                self._judge(call, state.kept, result)
            else:
                self._check(call, state, result)
                self._checks.advance()

    def _check(self, call: Call, state: _State, result: Any) -> None:
        check = _Check(_key(call), _finding(call, _("NaN or Inf, of finite arguments")))
        product = projection.start(call, result)
        if product is not None:
            self.products += 1
            self._checks.add(check, product)
            return
        made = None if meant(call) else projection.greatest(tensor_list(result))
        if made is None:
            return
        given = projection.greatest(call.given) if state.greatest is None else state.greatest
        self._checks.add(
            check, None, [made if given is None else made.where(given.isfinite(), 0.0)]
        )
        self.others += 1

    # Verdicts.

    def _note(self, check: _Check, found: projection.Finding | None, numbers: list[float]) -> None:
        """Makes a suspect of a call of which a check failed."""
        if found is None and all(map(math.isfinite, numbers)):
            return
        operator = check.finding.operator
        if self._wrong[operator] >= EACH:
            self._wrong[operator] += 1
        elif check.key not in self._judged:
            text = check.finding.text if found is None else found.message
            finding = replace(check.finding, text=text)
            suspect = _Suspect(finding, found is not None, step_counter.current() + WAITS)
            self._suspects.setdefault(check.key, suspect)

    def _collect(self) -> None:
        """Reads all checks. Suspects whose next call did not come are reported as such."""
        self._checks.advance(wait=True)
        self._drop_until(math.inf)

    def _drop_until(self, step: float) -> None:
        for key, suspect in list(self._suspects.items()):
            if step > suspect.until:
                self._drop(key, suspect)

    def _drop(self, key: Hashable, suspect: _Suspect, is_reported: bool = True) -> None:
        """The host has not found a suspect wrong."""
        self._suspects.pop(key, None)
        self._judged.add(key)
        self.cleared += not is_reported
        self._doubtful[suspect.finding.operator] += is_reported
        if is_reported and self._doubtful[suspect.finding.operator] <= EACH:
            self.suspects.append(suspect.finding)
            self._unreported.append(suspect.finding)

    def _judge(self, call: Call, kept: Call, result: Any) -> None:
        """Judges a call of a suspect's kind on the host; waits for the device."""
        key = _key(call)
        ours = host_transfer.mapped(result, inputs.Transfer(is_late=False).leaf)
        made = tensor_list(ours)
        types = [tensor.dtype for tensor in made]
        again = make_rerun(kept, frozenset(), _writes(call), None, types)
        again.precision = precision.now(call)
        taken = RecordedCall(again, ours, [None] * len(kept.given), False, str(call.device))
        pending = projection.start(kept, ours)
        if pending is not None:
            found = pending.verdict()
            text = found.message if found is not None else ""
            right = not text
        else:
            text, right = _not_finite(taken, made)
        with self._lock:
            suspect = self._suspects.pop(key, None)
            if suspect is None:
                return
            self._judged.add(key)
        if text:
            self._wrong[call.name] += 1
            if self._wrong[call.name] <= EACH:
                saved = self._saver.save(taken, None)
                finding = replace(_finding(call, text), confirmed=True, saved=saved)
                self.findings.append(finding)
                self._unreported.append(finding)
        elif right:  # NaN and Inf once may come of the program's own numbers
            self._drop(key, suspect, suspect.is_product or not are_finite(kept.given))
        else:
            self.cleared += 1

    def _tell(self) -> None:
        """Reports what was found, at the end of a step: not inside of a call."""
        found, self._unreported = self._unreported, []
        for finding in found:
            if not finding.confirmed or not callable(self._on_finding):
                console(stderr=True).print(str(finding), style="red", soft_wrap=True, markup=False)
        for finding in found:
            if finding.confirmed and callable(self._on_finding):
                self._on_finding(finding)
            elif finding.confirmed and self._on_finding == "stop":
                hint = _("OP_GUARD_ON_FINDING=warn goes on.")
                raise GuardError(
                    _("{operator}: {text}.").format(operator=finding.operator, text=finding.text),
                    hint,
                )

    @property
    def confirmed(self) -> int:
        """Calls with a wrong result."""
        return self._wrong.total()

    def so_far(self) -> str:
        return _(", {confirmed} wrong").format(confirmed=self.confirmed)

    def finish(self, started: Started) -> None:
        self._unreported = []  # the summary has them
        lines = [
            _(
                "Guard: {watched} of {steps} steps watched, {products} products and {others} "
                "other calls checked, {share:.1%} of the time; {confirmed} wrong results"
            ).format(
                watched=self.watched,
                steps=self.steps,
                products=self.products,
                others=self.others,
                share=self._clock.share,
                confirmed=self.confirmed,
            )
        ]
        lines += ["  " + str(finding) for finding in self.findings]
        for operator, count in self._wrong.items():
            if count > EACH:
                lines.append(
                    _("  and {count} other calls of {operator}").format(
                        count=count - EACH, operator=operator
                    )
                )
        lines += ["  " + str(finding) for finding in self.suspects]
        if self.cleared:
            lines.append(
                _("  {cleared} calls have NaN or Inf of finite arguments on the CPU too").format(
                    cleared=self.cleared
                )
            )
        terminal.summary(self, started, lines)


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


def _asked(options: Options) -> tuple[float, OnFinding]:
    """The budget and what follows a finding; SettingError where they are not allowed."""
    more = dict(options.more)
    budget = more.pop("budget", None)
    on_finding = more.pop("on_finding", None)
    if more:
        raise SettingError(
            _("Guard takes no {names}.").format(names=", ".join(sorted(more))),
            _("it takes budget, on_finding."),
        )
    if budget is None:
        budget = settings.OP_GUARD_BUDGET.get()
    if on_finding is None:
        on_finding = settings.OP_GUARD_ON_FINDING.get()
    try:
        share = settings.parse_share(str(budget))
    except ValueError as error:
        raise SettingError(
            _("Guard: budget {budget!r}: {error}.").format(budget=budget, error=error),
            _("for example 0.01."),
        ) from None
    if on_finding not in ("warn", "stop") and not callable(on_finding):
        raise SettingError(
            _("Guard: on_finding {on_finding!r} is not allowed.").format(on_finding=on_finding),
            _('"warn", "stop" or a function.'),
        )
    return share, on_finding


def _key(call: Call) -> Hashable:
    """What calls of the same kind have in common."""
    return call.direction, key_of(call)


def _finding(call: Call, text: str) -> Finding:
    device = str(call.device or eligibility.HOST)
    place = settings.rank(), call.step, call.direction, call.module, call.where
    return Finding(call.name, device, *place, text, False)


def _writes(call: Call) -> bool:
    return bool(call.func._schema.is_mutable) if hasattr(call.func, "_schema") else False


def _not_finite(taken: RecordedCall, made: list[Tensor]) -> tuple[str, bool]:
    """What is wrong with a result that is compared with the CPU's, and whether nothing can be said:
    it is finite, or its arguments are not.
    """
    given = taken.call.given
    if are_finite(made) or not are_finite(given):
        return "", True
    if eligibility.unfit(taken.call):
        return "", False
    theirs = tensor_list(taken.reference().result)
    for one, reference in zip(made, theirs, strict=False):
        if one.is_floating_point() and one.shape == reference.shape:
            fits = reference.abs() < torch.finfo(one.dtype).max
            bad = int((~one.isfinite() & reference.isfinite() & fits).sum())
            if bad:
                return _("{bad} of {numel} elements are not finite, but are on the CPU").format(
                    bad=bad, numel=one.numel()
                ), False
    return "", False
