# SPDX-License-Identifier: Apache-2.0
"""One row for each operator of someone else's kernels: its grade and its properties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diopi.conformance.cases.case import NOT_IMPLEMENTED, Result, parse
from diopi.conformance.execution.grading import worse

YES, NO, UNKNOWN = "yes", "no", "-"
# properties: the check that shows each
PROPERTIES = {
    "batch_invariant": "batch",
    "deterministic": "determinism",
    "layout_invariant": "layout",
    "own_work": "torch",
    "initialised": "uninitialised",
    "inside": "outside",
}
EMPTY = "empty"  # the growth of cases without elements


@dataclass(frozen=True)
class Operator:
    """One operator. The properties are yes, no, or - where no case shows them."""

    op: str
    grade: str  # the worst: A, B, F; "" when no case ran
    cases: int
    wrong: int
    refused: int  # cases whose arguments the kernel does not take
    error: float  # the worst, as a multiple of the bound
    batch_invariant: str
    deterministic: str
    layout_invariant: str
    empty: str  # whether arguments without elements work
    own_work: str  # whether the kernel computes without torch's own operator
    initialised: str  # whether results are independent of uninitialised memory
    inside: str  # whether results are independent of memory around the arguments
    worst: str = ""  # id of the worst case


def rows_of(results: Sequence[Result]) -> tuple[Operator, ...]:
    """Return the rows of the operators of some results."""
    by_op: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_op[result.op].append(result)
    return tuple(_row(op, rows) for op, rows in sorted(by_op.items()))


def _row(op: str, rows: Sequence[Result]) -> Operator:
    ran = [row for row in rows if row.status != "skipped"]
    worst = max(ran, key=lambda row: ("ABF".find(row.grade), row.error), default=None)
    shown = {name: _property(ran, check) for name, check in PROPERTIES.items()}
    empty = [row for row in ran if parse(row.case).profile == EMPTY]
    return Operator(
        op,
        worse([row.grade for row in ran]) if ran else "",
        len(ran),
        sum(row.bad for row in ran),
        sum(row.reason.startswith(NOT_IMPLEMENTED) for row in rows if row.status == "skipped"),
        max((row.error for row in ran if row.error < float("inf")), default=0.0),
        empty=_all(not row.bad for row in empty),
        worst=worst.case if worst is not None and worst.grade != "A" else "",
        **shown,
    )


def _property(ran: Iterable[Result], check: str) -> str:
    mine = [row for row in ran if check in row.checks]
    return _all(all(finding.check != check for finding in row.findings) for row in mine)


def _all(passed: Iterable[bool]) -> str:
    found = list(passed)
    return UNKNOWN if not found else YES if all(found) else NO
