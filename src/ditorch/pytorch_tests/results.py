# SPDX-License-Identifier: Apache-2.0
"""Test results: rows, their CSV, a summary, and the changes since another run."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from deeplink.errors import DeeplinkError

RESULTS = ("passed", "failed", "skipped", "error")
BAD = ("failed", "error")
# what a row is about: the device, a plain class in the device's process, the CPU without a device
DEVICE, HOST, CPU = SIDES = ("device", "host", "cpu")

Key = tuple[str, str, str, str]


@dataclass(frozen=True, order=True)
class Test:
    """One test by its place; `device` is one of SIDES: what it tests."""

    file: str  # a test file, or one of the built-in suites
    class_name: str
    name: str
    device: str = DEVICE

    @property
    def key(self) -> Key:
        return self.file, self.class_name, self.name, self.device

    def __str__(self) -> str:
        return "::".join(part for part in self.key[:3] if part)


@dataclass(frozen=True)
class Row:
    """One line of the CSV; `cause` and `reason` are empty unless the test failed."""

    file: str
    class_name: str
    test: str
    device: str
    result: str
    seconds: str
    cause: str = ""  # chip or shim
    reason: str = ""  # the rule that decided the cause
    message: str = ""
    where: str = ""  # the innermost frame

    @property
    def key(self) -> Key:
        return self.file, self.class_name, self.test, self.device

    @property
    def bad(self) -> bool:
        return self.result in BAD

    def __str__(self) -> str:
        return "::".join(part for part in self.key[:3] if part)


COLUMNS = tuple(field.name for field in fields(Row))


def read(path: Path) -> list[Row]:
    """Read the rows of a CSV: the last row of each test, without an incomplete line.

    The row of a file that failed to load is dropped if the file was loaded later.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise DeeplinkError(
                f"{path} has the columns {', '.join(reader.fieldnames or ()) or 'of nothing'}; "
                f"expected: {', '.join(COLUMNS)}.",
                hint="give a CSV that this command wrote.",
            )
        whole = [line for line in reader if None not in line.values() and None not in line]
    rows = [Row(**line) for line in whole if line["result"] in RESULTS]
    loaded = {(row.file, row.device == CPU) for row in rows if row.test}
    last = {row.key: row for row in rows}.values()
    return [row for row in last if row.test or (row.file, row.device == CPU) not in loaded]


class Writer:
    """Appends each row to a CSV at once, so that an interruption loses no result."""

    def __init__(self, path: Path, append: bool) -> None:
        cut = append and path.exists() and not path.read_bytes().endswith(b"\n")
        fresh = not append or not path.exists() or not path.stat().st_size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w" if fresh else "a", encoding="utf-8", newline="")
        if cut and not fresh:
            self._file.write("\n")
        self._csv = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        if fresh:
            self._csv.writeheader()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        self._csv.writerow(asdict(row))
        self._file.flush()


@dataclass(frozen=True)
class Line:
    """One line of the summary: the number of rows of a file, about the device or the CPU."""

    file: str
    device: str  # one of SIDES
    counts: Mapping[str, int]  # by result
    causes: Mapping[str, int]  # of the failed tests


def summary(rows: Iterable[Row]) -> list[Line]:
    """Count the rows of each file, separately for each side."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    causes: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        place = row.file, row.device
        counts.setdefault(place, Counter())[row.result] += 1
        causes.setdefault(place, Counter())[row.cause] += 1
    # rows about the device first: they are the purpose of the run
    order = sorted(counts, key=lambda place: (SIDES.index(place[1]), place[0]))
    return [Line(*place, counts[place], causes[place]) for place in order]


@dataclass(frozen=True)
class Diff:
    """Changes between two runs; a new test that fails counts as newly failing."""

    newly_failing: tuple[Row, ...]
    newly_passing: tuple[Row, ...]
    disappeared: tuple[Row, ...]


def diff(old: Iterable[Row], new: Iterable[Row]) -> Diff:
    """Compare two runs test by test."""
    before, after = {row.key: row for row in old}, {row.key: row for row in new}
    bad_before = {key for key, row in before.items() if row.bad}
    return Diff(
        tuple(row for key, row in after.items() if row.bad and key not in bad_before),
        tuple(row for key, row in after.items() if row.result == "passed" and key in bad_before),
        tuple(row for key, row in before.items() if key not in after),
    )
