# SPDX-License-Identifier: Apache-2.0
"""Checks of a run: by its losses, its exit code, or an expression or script of the user."""

from __future__ import annotations

import ast
import builtins
import json
import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run.loss_log import Loss, printed

ROUNDING = 8.0  # of the difference by rounding is allowed
LEAST = 2.0**-21  # of a loss: a few steps of float32


NAMES = ("loss", "losses", "status", "math")  # of an expression
KNOWN = "there are loss, losses, status and math."


class CheckError(DeeplinkError):
    """A check that cannot run."""


@dataclass(frozen=True)
class Seen:
    """The output of one run."""

    losses: Sequence[Loss] = ()
    exit: int = 0
    problem: str = ""  # the reason why the run was stopped
    log: Path | None = None
    counts: Any = None
    suspects: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def values(self) -> list[float]:
        return [loss.value for loss in self.losses]

    @property
    def ended(self) -> str:
        """How the run ended, if not with status 0; else ""."""
        return self.problem or (f"it ended with status {self.exit}" if self.exit else "")

    @property
    def last_lines(self) -> str:
        """The last lines of the output."""
        if self.log is None or not self.log.exists():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return "\n" + "\n".join(f"  | {line}" for line in lines)


class Check(Protocol):
    """Decides whether a run is correct, with a reason."""

    @property
    def kind(self) -> str: ...
    @property
    def by_losses(self) -> bool: ...  # a run with an error after its last loss may be correct
    def __call__(self, seen: Seen) -> tuple[bool, str]: ...
    def wrong(self, losses: Sequence[Loss]) -> str: ...  # which no later loss can change; "": none
    def described(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LossCheck:
    """The losses are those of a reference, each within its tolerance."""

    reference: Sequence[Loss]
    tolerance: Sequence[float]  # of each
    source: str = "everything on the CPU"
    kind: str = field(default="loss", init=False)
    by_losses: bool = field(default=True, init=False)

    def __call__(self, seen: Seen) -> tuple[bool, str]:
        if not seen.losses:
            return False, _("no loss was seen")
        wrong = self.wrong(seen.losses)
        if wrong:
            return False, wrong
        if len(seen.losses) < len(self.reference):
            return False, _("{count} {count:loss|losses} of {count2}").format(
                count=len(seen.losses), count2=len(self.reference)
            )
        last = seen.losses[-1].value
        return True, _(
            "{count:the|all} {count} {count:loss is|losses are} right, the last {last:.9g}"
        ).format(count=len(self.reference), last=last)

    def wrong(self, losses: Sequence[Loss]) -> str:
        """The first incorrect loss."""
        for at, (one, right) in enumerate(zip(losses, self.reference, strict=False)):
            allowed = self.tolerance[min(at, len(self.tolerance) - 1)]
            if not _near(one.value, right.value, allowed):
                bound = (
                    _("within {allowed:.3g}").format(allowed=allowed) if allowed else _("exactly")
                )
                return _("loss {at} is {value:.9g}, not {value2:.9g} ({bound})").format(
                    at=at, value=one.value, value2=right.value, bound=bound
                )
        return ""

    def described(self) -> dict[str, Any]:
        values = [loss.value for loss in self.reference]
        return {
            "kind": "loss",
            "reference": values,
            "tolerance": list(self.tolerance),
            "from": self.source,
        }


def _near(one: float, right: float, allowed: float) -> bool:
    if math.isnan(right) or math.isnan(one):
        return math.isnan(right) and math.isnan(one)
    return one == right or abs(one - right) <= allowed


def judged(check: Check, seen: Seen, most: int) -> tuple[bool, str]:
    """The verdict of a check on a run, where other runs have `most` losses. A run that was ended by
    a signal, or raised, is correct if it had all of its losses before.
    """
    passed, reason = check(seen)
    if not check.by_losses:
        return (False, seen.problem) if seen.problem and check.kind != "exit" else (passed, reason)
    if seen.ended and len(seen.losses) < most:
        return False, _("{count} {count:loss|losses} of {most}, then {ended}").format(
            count=len(seen.losses), most=most, ended=seen.ended
        )
    return passed, _("{reason}; then {ended}").format(
        reason=reason, ended=seen.ended
    ) if seen.ended else reason


def is_decided(check: Check, losses: Sequence[Loss], most: int) -> bool:
    """Whether no later loss can change the verdict of `judged` on a run."""
    if not check.by_losses or check.kind == "expression":
        return False
    return bool(check.wrong(losses)) or (len(losses) >= most > 0 and check(Seen(losses))[0])


def tolerance_of(reference: Sequence[Loss], again: Sequence[Loss]) -> list[float]:
    """The effect of rounding on each loss, by two correct runs with different rounding."""
    found, worst = [], 0.0
    for right, other in zip(reference, again, strict=False):
        off = abs(right.value - other.value)
        worst = max(worst, off if math.isfinite(off) else 0.0)
        found.append(ROUNDING * worst + max(right.step, LEAST * abs(right.value)))
    return found


@dataclass(frozen=True)
class NanCheck:
    """No loss is nan or infinite."""

    kind: str = field(default="nan", init=False)
    by_losses: bool = field(default=True, init=False)

    def __call__(self, seen: Seen) -> tuple[bool, str]:
        if not seen.losses:
            return False, _("no loss was seen")
        wrong = self.wrong(seen.losses)
        return not wrong, wrong or _(
            "{count:the|all} {count} {count:loss is|losses are} finite"
        ).format(count=len(seen.losses))

    def wrong(self, losses: Sequence[Loss]) -> str:
        """The first loss that is not finite."""
        bad = ((at, loss.value) for at, loss in enumerate(losses) if not math.isfinite(loss.value))
        return next((_("loss {at} is {value}").format(at=at, value=value) for at, value in bad), "")

    def described(self) -> dict[str, Any]:
        return {"kind": "nan"}


@dataclass(frozen=True)
class ExitCheck:
    """The program ends with status 0."""

    kind: str = field(default="exit", init=False)
    by_losses: bool = field(default=False, init=False)

    def __call__(self, seen: Seen) -> tuple[bool, str]:
        return seen.exit == 0, _("status {exit}").format(exit=seen.exit)

    def wrong(self, losses: Sequence[Loss]) -> str:
        """Not decided before the end of the run."""
        return ""

    def described(self) -> dict[str, Any]:
        return {"kind": "exit"}


@dataclass(frozen=True)
class ExpressionCheck:
    """A Python expression of `loss` (the last), `losses`, `status` and `math` holds."""

    expression: str
    kind: str = field(default="expression", init=False)

    @property
    def by_losses(self) -> bool:
        return "status" not in self.expression

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.expression, mode="eval")
        except SyntaxError as error:
            raise CheckError(
                _("--check {expression!r} is no Python expression: {msg}.").format(
                    expression=self.expression, msg=error.msg
                ),
                _("write one of loss, nan, exit, script:FILE, or as 'loss < 0.5'."),
            ) from None
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        own = {node.id for node in found if isinstance(node.ctx, ast.Store)}  # of `for x in losses`
        unknown = {node.id for node in found} - own - {*NAMES, *dir(builtins)}
        if unknown:
            text = _("--check {expression!r}: there is no {names}.").format(
                expression=self.expression, names=", ".join(sorted(unknown))
            )
            raise CheckError(text, KNOWN)

    def __call__(self, seen: Seen) -> tuple[bool, str]:
        losses = seen.values
        if not losses and "loss" in self.expression:
            return False, _("no loss was seen")
        names = {
            "losses": losses,
            "loss": losses[-1] if losses else math.nan,
            "status": seen.exit,
            "math": math,
        }
        try:
            value = bool(eval(self.expression, names))  # an expression of the user
        except Exception as error:  # any error of the expression is reported
            text = _("--check {expression!r}: {name}: {error}.").format(
                expression=self.expression, name=type(error).__name__, error=error
            )
            raise CheckError(text, KNOWN) from None
        return value, _("{expression} is {value}").format(expression=self.expression, value=value)

    def wrong(self, losses: Sequence[Loss]) -> str:
        """Not decided before the end of the run."""
        return ""

    def described(self) -> dict[str, Any]:
        return {"kind": "expression", "expression": self.expression}


@dataclass(frozen=True)
class ScriptCheck:
    """A script of the user ends with status 0: `script LOG LOSSES.json`."""

    script: str
    kind: str = field(default="script", init=False)
    by_losses: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not os.access(self.script, os.X_OK):  # reported before the first run
            there = _("is not executable") if Path(self.script).exists() else _("is not there")
            text = _("--check script:{script}: the file {there}.").format(
                script=self.script, there=there
            )
            raise CheckError(text, _("it needs a #! line, and chmod +x."))

    def __call__(self, seen: Seen) -> tuple[bool, str]:
        assert seen.log is not None  # of a command there is one
        losses = seen.log.with_suffix(".losses.json")
        losses.write_text(json.dumps(seen.values), encoding="utf-8")
        line = [str(Path(self.script).resolve()), str(seen.log), str(losses)]
        try:
            status = subprocess.run(line, check=False, capture_output=True).returncode
        except OSError as error:
            raise CheckError(
                _("--check script:{script} cannot be run: {strerror}.").format(
                    script=self.script, strerror=error.strerror or error
                ),
                _("is it executable, with a #! line?"),
            ) from None
        return status == 0, _("{script} says {status}").format(script=self.script, status=status)

    def wrong(self, losses: Sequence[Loss]) -> str:
        """Not decided before the end of the run."""
        return ""

    def described(self) -> dict[str, Any]:
        return {"kind": "script", "script": self.script}


PLAIN: dict[str, Check] = {"nan": NanCheck(), "exit": ExitCheck()}


def parse(text: str) -> Check | None:
    """The check of the options; None: by the losses of a reference."""
    if text == "loss":
        return None
    if text in PLAIN:
        return PLAIN[text]
    if text.startswith("script:"):
        return ScriptCheck(text.removeprefix("script:"))
    return ExpressionCheck(text)


def read_reference(path: Path, pattern: str) -> list[Loss]:
    """Read losses from a file: a JSON list, the output of `observe_loss`, or the output of a
    program.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckError(
            _("{path} cannot be read: {strerror}.").format(
                path=path, strerror=error.strerror or error
            )
        ) from None
    try:
        rows = json.loads(text)
        found = [Loss(float(row)) for row in rows] if isinstance(rows, list) else []
    except (ValueError, TypeError):
        found = []
    if not found:
        for line in text.splitlines():
            try:
                found.append(Loss(float(json.loads(line)["loss"])))
            except (ValueError, TypeError, KeyError):
                continue
    found = found or printed(text, pattern)
    if not found:
        raise CheckError(
            _("no loss in {path}.").format(path=path),
            _("write a JSON list, or say --loss-pattern."),
        )
    return found
