# SPDX-License-Identifier: Apache-2.0
"""Ops of other layers in the same suite; an entry point of the group `deeplink.conformance` brings
them, and its name is the source of their cases: dlinfer.rms_norm/float32/dlinfer.3/plain/plain.
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
CHECK = "meaning"  # what a case is held against
Trial = tuple[str, Callable[[], str]]  # a few words, and what finds out what is wrong; "": nothing


class Guest(Protocol):
    """Ops with cases of their own."""

    def ops(self) -> Sequence[str]:
        """Their names, with a dot: no op of the interface has one."""
        ...

    def dtypes(self, vendor: str, device: str) -> Mapping[str, Sequence[str]]:
        """Of the ops that a vendor has kernels of: the dtypes that there are cases in."""
        ...

    def trials(self, op: str, dtype: str, vendor: str, device: str) -> Sequence[Trial]:
        """The cases of an op in a dtype, in the same order at each call."""
        ...


@cache
def guests() -> dict[str, Guest]:
    """All of them, by name."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}


def names(patterns: Sequence[str] = ()) -> list[str]:
    """Their ops of some names or patterns; no pattern: all."""
    ops = [op for guest in guests().values() for op in guest.ops()]
    return [op for op in ops if not patterns or any(fnmatch.fnmatch(op, p) for p in patterns)]


def groups(
    tier: Tier, subject: Subject, patterns: Sequence[str], dtypes: Collection[str]
) -> Iterator[Group]:
    """What there is to run on a vendor; of kernels that belong to none, nothing."""
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
    """The cases of a group, each with what runs it."""
    guest = guests()[group.source]
    trials = guest.trials(group.op, group.dtype, subject.name, subject.device)
    for index, (label, find) in enumerate(trials):
        case = Case(group.op, group.dtype, group.source, index)
        yield case, lambda case=case, label=label, find=find: _result(case, label, find)  # type: ignore[misc]


def run_one(case: Case, subject: Subject) -> Result:
    """One case by its id."""
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
