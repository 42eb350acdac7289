# SPDX-License-Identifier: Apache-2.0
"""One case from its id to its result: build the arguments, call the vendor, check the results."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from deeplink.errors import NoKernelError
from deeplink.judge.verdict import name_of
from diopi.conformance.cases.case import (
    LOWERED,
    NOT_IMPLEMENTED,
    PLAIN,
    Case,
    Finding,
    Result,
)
from diopi.conformance.cases.growth import GROWTHS, RANKS, NoGrowthError
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.checks.checks import CHECKS, FATAL
from diopi.conformance.checks.trial import Trial, line
from diopi.conformance.device_config import SkippedCall
from diopi.conformance.execution.expected import Expected
from diopi.conformance.execution.grading import worse
from diopi.conformance.execution.running import Run, rounded, run
from diopi.conformance.execution.subject import Subject
from diopi.conformance.planning import recipes
from diopi.conformance.workers.store import Bundle, Stored, mismatch
from diopi.op import get

NOT_REACHED = "torch computes this call without the operator of the kernel"
MOST_INTERPRETED = 1 << 12  # elements of the arguments of a variation, under an interpreter
TOO_SLOW = f"more than {MOST_INTERPRETED} elements take an interpreter too long"
MOST_RESULTS = 1 << 18  # elements of the results of a call whose arguments were enlarged


def attempt(
    case: Case,
    callee: Callee,
    base: Sample,
    subject: Subject,
    checks: Collection[str] = tuple(CHECKS),
    turn: Callable[[], None] = lambda: None,
    bundle: Bundle | None = None,
    skips: Sequence[SkippedCall] = (),
) -> Result:
    """Run a case, from the sample that it varies; `turn` is called when the CPU has finished and
    the
    vendor starts.
    """
    started = time.perf_counter()
    subject.begin()
    result = _attempt(case, callee, base, subject, checks, turn, bundle, skips)
    return replace(result, seconds=round(time.perf_counter() - started, 6))


def _attempt(
    case: Case,
    callee: Callee,
    base: Sample,
    subject: Subject,
    checks: Collection[str],
    turn: Callable[[], None],
    bundle: Bundle | None,
    skips: Sequence[SkippedCall],
) -> Result:
    try:
        sample = vary(case, callee, base)
    except NoSampleError as error:
        return _skipped(case, str(error))
    size = sum(tensor.numel() for tensor in sample.tensors)
    if subject.interpreted and case.profile != PLAIN and size > MOST_INTERPRETED:
        return _skipped(case, TOO_SLOW)
    for skip in skips:
        if reason := skip.reason(get(case.op), sample):
            return _skipped(case, reason)
    if subject.is_host:  # the CPU's work from here on belongs to the vendor
        turn()
    if case.source.endswith(f"+{recipes.ERRORS}"):
        return _refusal(case, callee, sample, subject, turn)
    reason = "" if bundle is None else mismatch(bundle, case, sample)
    if bundle is None or reason:  # arguments differ from those of the baseline: computed here
        expected = Expected(callee, sample)
    else:
        expected = Stored(callee, sample, bundle, case)
    try:
        expected.plain.result  # noqa: B018 - asked for so that the CPU refuses here
    except Exception as error:  # limits of the CPU are no failures of the vendor
        return _skipped(case, f"the CPU refuses: {line(error)}")
    turn()
    try:
        with subject.active():
            found = run(subject.takes(callee), sample, subject.device)
            subject.finish()  # an asynchronous error belongs to this case, too
    except NoKernelError as error:
        return _skipped(case, f"{NOT_IMPLEMENTED}: {line(error)}")
    except Exception as error:  # anything that a kernel raises is the result of this case
        finding = Finding("call", f"raised {type(error).__name__}: {line(error)}")
        return Result(case.id, "failed", "F", (finding,), ("call",))
    if subject.watch is not None and not subject.watch.calls:
        return _skipped(case, NOT_REACHED)
    casts = {s: t for s, t in subject.calls.casts.items() if s in _dtypes(sample, found)}
    if casts:  # results of a coarser type, from arguments that were rounded to it
        sample = rounded(sample, casts)
        expected = Expected(callee, sample, casts)
        with subject.active():
            found = run(subject.takes(callee), sample, subject.device)
        names = ", ".join(f"{name_of(s)} as {name_of(t)}" for s, t in casts.items())
        reason = f"{LOWERED} {names}; judged by the bound of the latter"
    judged = _judge(Trial(case, callee, sample, subject, expected, found), checks)
    return replace(judged, reason="; ".join(filter(None, (judged.reason, reason))))


def _dtypes(sample: Sample, found: Run) -> set[torch.dtype]:
    return {tensor.dtype for tensor in (*sample.tensors, *found.tensors)}


class NoSampleError(Exception):
    """The sample cannot be varied as the case requires; the text is the reason."""


def vary(case: Case, callee: Callee, base: Sample) -> Sample:
    """Return the arguments of a case, from the sample that it varies."""
    try:
        sample = recipes.varied(base, case)
    except (NoGrowthError, RuntimeError, TypeError, ValueError) as error:
        raise NoSampleError(f"cannot be varied in this way: {line(error)}") from None
    if sample is not base and not recipes.changes(base, sample):
        raise NoSampleError("the variation changes nothing")
    if case.profile in (*GROWTHS, *RANKS) and not _fits(callee, sample):
        raise NoSampleError(f"it would give more than {MOST_RESULTS} elements")
    return sample


def _judge(trial: Trial, checks: Collection[str]) -> Result:
    findings: list[Finding] = []
    made = []
    reason = ""
    for name, check in CHECKS.items():
        if name not in checks or not trial.subject.wants(name, trial.case.op):
            continue
        try:
            found = check(trial)
        except NoKernelError as error:  # of another form, or of the gradient
            reason = f"{NOT_IMPLEMENTED}, {name}: {line(error)}"
            continue
        except Exception as error:  # a kernel may raise anything, also in its backward
            found = [Finding(name, f"raised {type(error).__name__}: {line(error)}")]
        if found is None:
            continue
        made.append(name)
        findings += found
        if name in FATAL and any(finding.grade == "F" for finding in found):
            break
    overruns = dict.fromkeys(trial.subject.overruns)
    findings += [Finding("guard", text) for text in overruns]
    findings = _blamed(trial, findings)
    grade = worse([f.grade for f in findings])
    verdicts = [judged.verdict for judged in trial.judged]
    return Result(
        trial.case.id,
        "failed" if grade == "F" else "passed",
        grade,
        tuple(findings),
        tuple(made),
        max([v.ratio for v in verdicts], default=0.0),
        max([v.max_abs for v in verdicts], default=0.0),
        reason=reason,
    )


NUMERIC = frozenset({"values", "specials", "inputs", "backward"})
FORMS = frozenset({"inplace", "out", "out_strided", "out_transposed", "out_resized"})


def _blamed(trial: Trial, findings: list[Finding]) -> list[Finding]:
    """Add to findings on incorrect numbers the C function that computes them, if one does."""
    calls = trial.subject.calls
    if not calls.functions:
        return findings
    named = []
    for finding in findings:
        if finding.grade == "F" and finding.check in NUMERIC | FORMS:
            finding = replace(finding, message=f"{finding.message}; {_culprit(trial, finding)}")
        named.append(finding)
    return named


def _culprit(trial: Trial, finding: Finding) -> str:
    """Rerun what failed and compare the results of every C function with the CPU's."""
    calls = trial.subject.calls
    calls.wrong = []
    functions = ", ".join(calls.functions)
    # the finding already reports what it raises
    with calls.judging(), contextlib.suppress(Exception):
        if finding.check in FORMS:
            CHECKS[finding.check](replace(trial, judged=[]))
        else:
            found = trial.again()
            if finding.check == "backward":
                with trial.subject.active():
                    found.gradients(trial.expected.seeds)
    return "; ".join(dict.fromkeys(calls.wrong)) or f"C functions called: {functions}"


def _fits(callee: Callee, sample: Sample) -> bool:
    """Whether the results are small enough to be judged; evaluated without computing them."""
    try:
        found = run(callee, sample, "meta", grad=False)
    except Exception:  # the sizes depend on values, or there is no meta kernel
        sizes = sorted((t.numel() for t in sample.tensors), reverse=True)
        return math.prod(sizes[:2]) <= MOST_RESULTS
    return sum(t.numel() for t in found.tensors) <= MOST_RESULTS


def _refusal(
    case: Case, callee: Callee, sample: Sample, subject: Subject, turn: Callable[[], None]
) -> Result:
    """Check that the vendor refuses an invalid call, as the CPU does."""
    try:
        run(callee, sample)
    except Exception:  # expected
        pass
    else:
        return _skipped(case, "the CPU accepts it")
    turn()
    try:
        with subject.active():
            run(subject.takes(callee), sample, subject.device)
            subject.finish()  # a device may refuse asynchronously
    except Exception as error:  # expected
        return Result(case.id, "passed", "A", (), ("errors",), reason=line(error))
    finding = Finding("errors", "an invalid call was not refused")
    return Result(case.id, "failed", "F", (finding,), ("errors",))


def _skipped(case: Case, reason: str) -> Result:
    return Result(case.id, "skipped", reason=reason)
