# SPDX-License-Identifier: Apache-2.0
"""Ops of other packages in the suite, registered by the entry point group `deeplink.conformance`.

The entry point's name is the source of their cases: dlinfer.rms_norm/float32/dlinfer.3/plain/plain.
"""

from __future__ import annotations

import fnmatch
import inspect
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Protocol

from deeplink.errors import NoKernelError
from diopi.conformance.cases.case import NOT_IMPLEMENTED, Case, Finding, Group, Result
from diopi.conformance.execution.subject import Subject, is_module
from diopi.conformance.outside.matching import Unmatched, variants
from diopi.conformance.planning.plan import MODELS, Tier

GROUP = "deeplink.conformance"
FAMILY = "fused"  # in the tables of a report
CHECK = "meaning"  # the only check of these cases
Trial = tuple[str, Callable[[], str]]  # a label, and a function that returns the error; "": none


class Guest(Protocol):
    """A package with ops and cases of its own."""

    def ops(self) -> Sequence[str]:
        """Return the names of the ops, with a dot, which no op of the interface has."""
        ...

    def dtypes(self, vendor: str, device: str) -> Mapping[str, Sequence[str]]:
        """Return the dtypes with cases, for each op that the vendor has kernels of."""
        ...

    def trials(self, op: str, dtype: str, vendor: str, device: str) -> Sequence[Trial]:
        """Return the cases of an op in a dtype, in equal order at each call."""
        ...

    @property
    def TYPES(self) -> Mapping[str, Any]:
        """The dtypes that have cases."""
        ...

    def parameters(self, op: str) -> Sequence[str]:
        """Return the names of an op's arguments."""
        ...

    def judged(
        self, op: str, dtype: str, kernel: Callable[..., Any], device: str
    ) -> Sequence[Trial]:
        """Return the cases of an op for a kernel of someone else."""
        ...


@cache
def guests() -> dict[str, Guest]:
    """Load all guests, by name."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}


def names(patterns: Sequence[str] = ()) -> list[str]:
    """Return the guests' ops that match names or patterns; all without a pattern."""
    ops = [op for guest in guests().values() for op in guest.ops()]
    return [op for op in ops if not patterns or any(fnmatch.fnmatch(op, p) for p in patterns)]


def groups(
    tier: Tier, subject: Subject, patterns: Sequence[str], dtypes: Collection[str]
) -> Iterator[Group]:
    """Yield the groups to run on a vendor; none for kernels that belong to no vendor."""
    outside = subject.matching is not None
    if tier.name.startswith(MODELS) or (is_module(subject.name) and not outside):
        return
    wanted = set(names(patterns))
    known = {str(dtype).removeprefix("torch.") for dtype in tier.dtypes}
    for source, guest in guests().items():
        own = {op: tuple(guest.TYPES) for op in subject.fused if op in guest.ops()}
        rows = own if outside else guest.dtypes(subject.name, subject.device)
        for op, mine in rows.items():
            for dtype in mine:
                if op in wanted and dtype in (known or mine) and dtype in (dtypes or mine):
                    yield Group(op, dtype, source)


def adopt(subject: Subject) -> Subject:
    """Return a subject with the functions that are kernels of guests' ops, by name and arguments.

    A function may have the usual words around the name, or `--map` names `dlinfer.rms_norm`.
    """
    if subject.matching is None or subject.watch is None:
        return subject
    fused: dict[str, Callable[..., Any]] = {}
    left: list[Unmatched] = []
    for one in subject.matching.unmatched:
        op = _op_of(one)
        lacking = _lacking(op, one.kernel) if op and one.kernel else ""
        if not op or one.kernel is None or op in fused:
            left.append(one)
        elif lacking:
            left.append(replace(one, reason=lacking, suggestions=()))
        else:
            subject.watch.names[op] = one.function
            fused[op] = subject.watch.watched(op, one.kernel)
    matching = replace(subject.matching, unmatched=tuple(left))
    return replace(subject, fused=fused, matching=matching)


def _op_of(one: Unmatched) -> str:
    every = names()
    for name in variants(one.requested or one.function):
        for op in every:
            if name in (op, op.partition(".")[2]):
                return op
    return ""


def _lacking(op: str, kernel: Callable[..., Any]) -> str:
    """Return why a function cannot be called with the arguments of an op; "" if it can."""
    (guest,) = (guest for guest in guests().values() if op in guest.ops())
    takes = guest.parameters(op)
    try:
        inspect.signature(kernel).bind(**dict.fromkeys(takes))
    except TypeError as error:
        return f"{op} has the arguments {', '.join(takes)}: {error}"
    except ValueError:
        return ""
    return ""


def run(group: Group, subject: Subject) -> Iterator[tuple[Case, Callable[[], Result]]]:
    """Yield the cases of a group, each with the function that runs it."""
    guest = guests()[group.source]
    if group.op in subject.fused:
        kernel = subject.fused[group.op]
        trials = guest.judged(group.op, group.dtype, kernel, subject.device)
    else:
        trials = guest.trials(group.op, group.dtype, subject.name, subject.device)
    for index, (label, find) in enumerate(trials):
        case = Case(group.op, group.dtype, group.source, index)
        yield case, partial(_result, case, label, find, subject)


def run_one(case: Case, subject: Subject) -> Result:
    """Run one case by its id."""
    for found, attempt in run(case.group, subject):
        if found == case:
            return attempt()
    return Result(case.id, "skipped", reason=f"{case.group} has no such case")


def _result(case: Case, label: str, find: Callable[[], str], subject: Subject) -> Result:
    begun = time.perf_counter()
    subject.begin()
    try:
        what = find()
    except NoKernelError as error:
        return Result(case.id, "skipped", reason=f"{NOT_IMPLEMENTED}: {error}")
    except Exception as error:  # a vendor's kernel may raise anything; the other cases go on
        what = f"{type(error).__name__}: {error}"
    what = what or "; ".join(subject.overruns)
    took = round(time.perf_counter() - begun, 3)
    if not what:
        return Result(case.id, "passed", "A", (), (CHECK,), seconds=took)
    finding = Finding(CHECK, f"{label}: {what}")
    return Result(case.id, "failed", "F", (finding,), (CHECK,), seconds=took)
