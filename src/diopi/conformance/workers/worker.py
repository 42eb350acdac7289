# SPDX-License-Identifier: Apache-2.0
"""A worker process: it runs the cases of one group after the other, and reports each start.

It is a worker of deeplink.testing.workers; its messages are pairs of a keyword and a value.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deeplink.testing import workers
from diopi.conformance.cases.case import Case, Group, Result
from diopi.conformance.cases.sample import Sample
from diopi.conformance.device_config import SkippedCall
from diopi.conformance.execution.origin import machine
from diopi.conformance.execution.subject import Subject, open_kernels, open_subject
from diopi.conformance.outside import problems
from diopi.conformance.outside.spec import of_fields
from diopi.conformance.planning import guests, plan, recipes
from diopi.conformance.workers import store
from diopi.conformance.workers.attempt import attempt, vary
from diopi.conformance.workers.store import Bundle

# Messages: it is up; a case begins; the CPU has finished and the vendor starts; a result; the group
# is finished.
READY, START, VENDOR, DONE, END = "ready", "start", "vendor", "done", "end"
LOST = "lost"  # the device is unusable for this process; it ends
Say = Callable[[str, Any], None]


def serve(line: workers.Line, options: dict[str, Any]) -> None:
    """Process groups and send results until the pipe closes."""

    def say(kind: str, what: Any) -> None:
        line.send((kind, what))

    torch.set_num_threads(options["threads"])
    for folder in reversed(options["path"]):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        if kernels := options.get("kernels"):
            subject = guests.adopt(open_kernels(of_fields(kernels)))
        else:
            subject = open_subject(options["vendor"])
        subject.calls.share(Path(options["calls"]))
        subject.ready()
    except Exception:  # reported to the parent, whatever it is: nothing can be checked
        say(END, traceback.format_exc(limit=-3))
        return
    bundle = Bundle(Path(options["baselines"])) if options.get("baselines") else None
    skips = [SkippedCall(**_tuples(fields)) for fields in options.get("skips", ())]
    say(READY, machine(subject.device))
    while (task := line.receive()) is not workers.CLOSED:
        group, tier, done = task
        if options.get("mode") == "generate":
            generate(group, tier, done, say)
        else:
            run_group(group, tier, done, subject, say, bundle, skips)
        say(END, "")


def run_group(
    group: Group,
    tier: str,
    done: Collection[str],
    subject: Subject,
    say: Say,
    bundle: Bundle | None = None,
    skips: Sequence[SkippedCall] = (),
) -> None:
    """Send the id of each case and then its result, without the cases in `done`."""
    mine = [skip for skip in skips if skip.op == group.op]
    if group.source == problems.SOURCE:
        problem = subject.problems[group.op]
        for case, sample in problem.cases():
            if case.id not in done:
                say(START, case.id)
                turn = partial(say, VENDOR, "")
                result = attempt(case, problem.callee, sample, subject, problems.CHECKS, turn)
                _say_result(result, subject, say)
        return
    if group.source in guests.guests():
        for case, act in guests.run(group, subject):
            if case.id not in done:
                say(START, case.id)
                say(VENDOR, "")
                _say_result(act(), subject, say)
        return
    limits = plan.tier_of(tier)
    try:
        samples = recipes.samples(group, limits.read)
    except Exception as error:  # limits of op_db, no failures of the vendor
        nothing = f"{group}.0/plain/plain"
        if nothing not in done:
            reason = f"no samples: {type(error).__name__}: {error}"
            say(DONE, Result(nothing, "skipped", reason=reason))
        return
    for case, checks in plan.cases(group, samples, limits):
        if case.id not in done:
            say(START, case.id)
            callee, sample = recipes.callee(group, case.index), samples[case.index]
            turn = partial(say, VENDOR, "")
            result = attempt(case, callee, sample, subject, checks, turn, bundle, mine)
            _say_result(result, subject, say)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of a SkippedCall back from JSON."""
    shapes = tuple(tuple(shape) for shape in fields["shapes"])
    names, dtypes = tuple(fields["names"]), tuple(fields["dtypes"])
    return {"op": fields["op"], "names": names, "shapes": shapes, "dtypes": dtypes}


def _say_result(result: Result, subject: Subject, say: Say) -> None:
    say(DONE, result)
    said = f"{result.message} {result.reason}"
    if (result.bad or "errors" in result.checks) and subject.lost(said):
        say(LOST, "")  # no later call would succeed here: another process goes on
        os._exit(1)


def generate(group: Group, tier: str, done: Collection[str], say: Say) -> None:
    """Send the baseline of each case of a group that has one, without the cases in `done`."""
    limits = plan.tier_of(tier)
    try:
        samples = recipes.samples(group, limits.read)
    except Exception:  # limits of op_db
        return
    if group.source.endswith(f"+{recipes.ERRORS}"):
        return  # nothing to be stored
    for case, _ in plan.cases(group, samples, limits):
        callee = recipes.callee(group, case.index)
        if callee.draws or case.id in done:
            continue
        say(START, case.id)
        try:
            made = store.make(case, callee, vary(case, callee, samples[case.index]))
        except Exception:  # limits of the CPU: no baseline then
            continue
        say(DONE, made)


def run_one(case: Case, subject: Subject) -> Result:
    """Run one case by its id, with all checks."""
    if case.source in guests.guests():
        return guests.run_one(case, subject)
    if case.source == problems.SOURCE:
        problem = subject.problems[case.op]
        rows = dict(problem.cases())
        return attempt(case, problem.callee, rows[case], subject, problems.CHECKS)
    samples: list[Sample] = recipes.samples(case.group, case.index + 1)
    if case.index >= len(samples):
        return Result(case.id, "skipped", reason=f"there are {len(samples)} samples only")
    callee = recipes.callee(case.group, case.index)
    return attempt(case, callee, samples[case.index], subject)


def main() -> None:
    serve(*workers.connect())


if __name__ == "__main__":
    main()
