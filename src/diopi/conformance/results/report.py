# SPDX-License-Identifier: Apache-2.0
"""The output of a run: the terminal, error_report.csv, JUnit and summary.json."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from deeplink.console import table
from diopi.conformance.cases.case import Result, reproduce
from diopi.conformance.execution.origin import Origin
from diopi.conformance.results.gaps import Gap, find
from diopi.conformance.results.results import Summary

SHOWN = 20  # rows of a printed list; the files have all of them
COLUMNS = (
    *("case", "op", "dtype", "status", "grade", "check", "message", "error", "gap", "reproduce"),
)


def errors(path: Path, results: Sequence[Result], gaps: Sequence[Gap], words: str) -> None:
    """Write error_report.csv: every case with a finding, the wrong ones first."""
    rows = [r for r in results if r.findings]
    rows.sort(key=lambda r: (not r.bad, r.case))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for r in rows:
            gap = find(gaps, r) if r.bad else None
            known = f"{gap.kind}: {gap.reason}" if gap else ""
            line = reproduce(r.case, words)
            writer.writerow(
                [r.case, r.op, r.dtype, r.status, r.grade, r.check, r.message, r.error, known, line]
            )


def junit(path: Path, results: Sequence[Result], gaps: Sequence[Gap], words: str) -> None:
    """Write JUnit: one suite for each op, for CI systems."""
    by_op: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_op[result.op].append(result)
    root = ElementTree.Element("testsuites", name=f"diopi.conformance {words}")
    for op, rows in sorted(by_op.items()):
        bad = sum(r.bad and find(gaps, r) is None for r in rows)
        skipped = sum(r.status == "skipped" for r in rows)
        suite = ElementTree.SubElement(
            root, "testsuite", name=op, tests=str(len(rows)), failures=str(bad),
            skipped=str(skipped), errors="0",
        )  # fmt: skip
        for r in rows:
            _junit_case(suite, r, find(gaps, r) if r.bad else None, words)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _junit_case(suite: ElementTree.Element, r: Result, gap: Gap | None, words: str) -> None:
    name = r.case.partition("/")[2]
    case = ElementTree.SubElement(
        suite, "testcase", classname=r.op, name=name, time=f"{r.seconds:.3f}"
    )
    if r.status == "skipped":
        ElementTree.SubElement(case, "skipped", message=_xml(r.reason))
    elif gap is not None:
        ElementTree.SubElement(case, "skipped", message=_xml(f"{gap.kind}: {gap.reason}"))
    elif r.bad:
        failure = ElementTree.SubElement(case, "failure", type=r.check, message=_xml(r.message))
        failure.text = reproduce(r.case, words)


def _xml(text: str) -> str:
    return "".join(mark for mark in text if mark.isprintable())


def summary_json(path: Path, summary: Summary) -> None:
    """Write summary.json: the metrics, for programs."""
    fields = asdict(summary) | {"cases": summary.cases, "ops": summary.ops}
    path.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")


def origin_in(folder: Path) -> Origin | None:
    """Read the origin of the run whose summary is in a folder."""
    path = folder / "summary.json"
    return Origin(**json.loads(path.read_text("utf-8"))["origin"]) if path.is_file() else None


def show(summary: Summary, results: Sequence[Result], gaps: Sequence[Gap], out: Console) -> None:
    """Print the metrics, the failures with the command that reproduces each, and advice."""
    bad = [r for r in results if r.bad and find(gaps, r) is None]
    if bad:
        first = _first_of_each(bad)
        rows = [[r.op, r.dtype, r.status, r.check, r.message[:160]] for r in first[:SHOWN]]
        head = f"{len(bad)} cases are wrong; the first of {len(first)} kinds"
        out.print(table(head, ["op", "dtype", "status", "check", "finding"], rows))
        out.print(f"Reproduce: {reproduce(first[0].case, summary.words)}", soft_wrap=True)
    for complaint in summary.complaints:
        out.print(complaint)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.counts.items()))
    grades = ", ".join(f"{grade or 'none'} {count}" for grade, count in summary.grades.items())
    known = sum(cell.known for cell in summary.cells)
    out.print(
        f"{summary.vendor}, {summary.tier}: {summary.cases} cases of {summary.ops} ops in "
        f"{summary.origin.seconds:.0f} s ({summary.origin.cpu_seconds:.0f} s of CPU); {counts}; "
        f"grades {grades}; {known} known gaps, {summary.unexplained} not explained."
    )


def _first_of_each(bad: Sequence[Result]) -> list[Result]:
    found: dict[tuple[str, str, str], Result] = {}
    for result in bad:
        found.setdefault((result.op, result.dtype, result.check), result)
    return list(found.values())
