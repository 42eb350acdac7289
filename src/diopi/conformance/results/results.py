# SPDX-License-Identifier: Apache-2.0
"""Results on disk, appended one by one, and their summary."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from diopi.conformance.cases.case import BAD, Finding, Result, lowered_as
from diopi.conformance.execution.grading import worse
from diopi.conformance.execution.origin import Origin
from diopi.conformance.results.gaps import Gap, find
from diopi.conformance.results.operators import Operator, rows_of


def read(path: Path) -> list[Result]:
    """Read the results of an earlier run, the last of each case, without an incomplete line."""
    found: dict[str, Result] = {}
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            try:
                fields = json.loads(line)
            except json.JSONDecodeError:
                continue
            fields["findings"] = tuple(Finding(**finding) for finding in fields["findings"])
            fields["checks"] = tuple(fields["checks"])
            found[fields["case"]] = Result(**fields)
    return list(found.values())


class Writer:
    """Appends each result to a file at once, so that an interruption loses no result."""

    def __init__(self, path: Path, append: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a" if append else "w", encoding="utf-8")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        self._file.write(json.dumps(asdict(result)) + "\n")
        self._file.flush()


@dataclass(frozen=True)
class Cell:
    """One op in one dtype."""

    op: str
    dtype: str
    cases: int
    bad: int
    known: int  # number of these that a gap explains
    grade: str
    error: float  # the worst, as a multiple of the bound
    worst: str = ""  # id of the worst case
    note: str = ""  # the coarser type by whose bound its cases were judged


@dataclass(frozen=True)
class Summary:
    """The summary of a run."""

    vendor: str
    tier: str
    counts: dict[str, int]  # by status
    grades: dict[str, int]
    checks: dict[str, int]  # number of runs of each
    unexplained: int
    cells: tuple[Cell, ...]
    complaints: tuple[str, ...]
    origin: Origin
    words: str = ""  # of the command line that requests the vendor or the kernels
    operators: tuple[Operator, ...] = ()  # of kernels of someone else
    unmatched: tuple[str, ...] = ()  # their functions without an operator

    @property
    def cases(self) -> int:
        """Number of cases that ran."""
        return sum(count for status, count in self.counts.items() if status != "skipped")

    @property
    def ops(self) -> int:
        return len({cell.op for cell in self.cells})

    @property
    def passed(self) -> bool:
        return not self.unexplained and not self.complaints


def summarise(
    results: Sequence[Result],
    gaps: Sequence[Gap],
    vendor: str,
    tier: str,
    complaints: Iterable[str],
    origin: Origin,
    words: str = "",
    unmatched: Sequence[str] = (),
) -> Summary:
    """Summarise the results of a run."""
    ran = [result for result in results if result.status != "skipped"]
    by_cell: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in ran:
        by_cell[result.op, result.dtype].append(result)
    return Summary(
        vendor,
        tier,
        dict(Counter(result.status for result in results)),
        dict(sorted(Counter(result.grade for result in ran).items())),
        dict(Counter(check for result in ran for check in result.checks)),
        sum(result.bad and find(gaps, result) is None for result in ran),
        tuple(_cell(key, rows, gaps) for key, rows in sorted(by_cell.items())),
        tuple(complaints),
        origin,
        words or f"--vendor {vendor}",
        rows_of(results) if words else (),
        tuple(unmatched),
    )


def _cell(key: tuple[str, str], rows: list[Result], gaps: Sequence[Gap]) -> Cell:
    bad = [row for row in rows if row.status in BAD]
    worst = max(rows, key=lambda row: ("ABF".find(row.grade), row.error))
    return Cell(
        *key,
        len(rows),
        len(bad),
        sum(find(gaps, row) is not None for row in bad),
        worse([row.grade for row in rows if row.grade]),
        max((row.error for row in rows if row.error < float("inf")), default=0.0),
        worst.case if worst.grade != "A" else "",
        next(filter(None, map(lowered_as, rows)), ""),
    )
