# SPDX-License-Identifier: Apache-2.0
"""Two result folders side by side: which cases became wrong, and which were fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from deeplink.console import table
from deeplink.errors import DeeplinkError
from diopi.conformance.cases.case import Result
from diopi.conformance.execution.grading import ORDER
from diopi.conformance.results import results

SHOWN = 40  # rows of a printed list
CHANGES = ("regression", "fix", "worse", "better")


@dataclass(frozen=True)
class Change:
    """A case whose outcome differs between two runs."""

    case: str
    kind: str  # regression: wrong in the second run alone; fix; worse or better grade
    before: str  # status and grade
    after: str
    message: str  # of the wrong or worse result


@dataclass(frozen=True)
class Comparison:
    """The changes from one run to another."""

    changes: tuple[Change, ...]
    common: int  # cases that ran in both
    only_before: int
    only_after: int

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.kind == "regression"]

    def fields(self) -> dict[str, Any]:
        """Return the fields in a form for JSON."""
        return asdict(self)


def compare(before: Path, after: Path) -> Comparison:
    """Compare the results in two folders."""
    first, second = _ran(before), _ran(after)
    common = first.keys() & second.keys()
    changes = [_change(first[case], second[case]) for case in sorted(common)]
    found = [change for change in changes if change is not None]
    found.sort(key=lambda change: CHANGES.index(change.kind))
    return Comparison(
        tuple(found), len(common), len(first.keys() - common), len(second.keys() - common)
    )


def _ran(folder: Path) -> dict[str, Result]:
    path = folder / "results.jsonl"
    if not path.is_file():
        raise DeeplinkError(
            f"there are no results in {folder}.", "--compare names two folders of -o DIR."
        )
    return {row.case: row for row in results.read(path) if row.status != "skipped"}


def _change(before: Result, after: Result) -> Change | None:
    kind = ""
    if before.bad != after.bad:
        kind = "regression" if after.bad else "fix"
    elif not after.bad and before.grade != after.grade:
        kind = "worse" if _rank(after) > _rank(before) else "better"
    if not kind:
        return None
    worse = after if kind in ("regression", "worse") else before
    return Change(after.case, kind, _outcome(before), _outcome(after), worse.message)


def _rank(result: Result) -> int:
    return ORDER.find(result.grade)


def _outcome(result: Result) -> str:
    return f"{result.status} {result.grade}".strip()


def show(found: Comparison, out: Console) -> None:
    """Print the changes, regressions first."""
    counts = {kind: sum(change.kind == kind for change in found.changes) for kind in CHANGES}
    rows: Sequence[list[str]] = [
        [change.kind, change.case, change.before, change.after, change.message[:120]]
        for change in found.changes[:SHOWN]
    ]
    if rows:
        head = f"the first {len(rows)} of {len(found.changes)} changes"
        out.print(table(head, ["change", "case", "before", "after", "finding"], list(rows)))
    out.print(
        f"{found.common} cases in both: {counts['regression']} regressions, {counts['fix']} fixes, "
        f"{counts['worse']} with a worse grade, {counts['better']} with a better one; "
        f"{found.only_before} in the first alone, {found.only_after} in the second alone.",
        soft_wrap=True,
    )
