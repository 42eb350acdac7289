# SPDX-License-Identifier: Apache-2.0
"""Ops of other packages in the suite, registered by the entry point group `deeplink.conformance`.

The entry point's name is the source of their cases: dlinfer.rms_norm/float32/dlinfer.3/plain/plain.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol

from diopi.conformance.cases.case import Case, Finding, Group, Result
from diopi.conformance.execution.subject import Subject, is_module
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
    if tier.name.startswith(MODELS) or is_module(subject.name):
        return
    wanted = set(names(patterns))
    known = {str(dtype).removeprefix("torch.") for dtype in tier.dtypes}
    for source, guest in guests().items():
        for op, mine in guest.dtypes(subject.name, subject.device).items():
            for dtype in mine:
                if op in wanted and dtype in (known or mine) and dtype in (dtypes or mine):
                    yield Group(op, dtype, source)


def run(group: Group, subject: Subject) -> Iterator[tuple[Case, Callable[[], Result]]]:
    """Yield the cases of a group, each with the function that runs it."""
    guest = guests()[group.source]
    trials = guest.trials(group.op, group.dtype, subject.name, subject.device)
    for index, (label, find) in enumerate(trials):
        case = Case(group.op, group.dtype, group.source, index)
        yield case, lambda case=case, label=label, find=find: _result(case, label, find)  # type: ignore[misc]


def run_one(case: Case, subject: Subject) -> Result:
    """Run one case by its id."""
    for found, attempt in run(case.group, subject):
        if found == case:
            return attempt()
    return Result(case.id, "skipped", reason=f"{case.group} has no such case")


def _result(case: Case, label: str, find: Callable[[], str]) -> Result:
    begun = time.perf_counter()
    try:
        what = find()
    except Exception as error:  # a vendor's kernel may raise anything; the other cases go on
        what = f"{type(error).__name__}: {error}"
    took = round(time.perf_counter() - begun, 3)
    if not what:
        return Result(case.id, "passed", "A", (), (CHECK,), seconds=took)
    finding = Finding(CHECK, f"{label}: {what}")
    return Result(case.id, "failed", "F", (finding,), (CHECK,), seconds=took)
