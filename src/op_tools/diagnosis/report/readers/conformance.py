# SPDX-License-Identifier: Apache-2.0
"""The results of the conformance suite: operators by type, the failures, how to reproduce them."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from deeplink.i18n import _
from op_tools.diagnosis.report.model import Cell, Content, Finding, Row, Table
from op_tools.diagnosis.report.readers.tools import lines_of

BAD = ("failed", "crashed", "hung", "error")
ORDER = {"A": 0, "B": 1, "F": 2}
FAILURES = 1000  # rows of the table; error_report.csv has all


def results(file: Path, content: Content) -> None:
    """Read results.jsonl: a row for each wrong or remarkable case, a cell for each operator and
    type. The finished run's summary.json adds the known gaps and how the run was made.
    """
    cases: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for found in lines_of(file):
        if "case" not in found or "status" not in found:
            return  # a file of another tool
        if found["status"] == "skipped":
            reasons[str(found.get("reason") or _("no reason given"))] += 1
            continue
        words: list[str] = str(found["case"]).split("/")
        op, dtype = words[0], words[1] if len(words) > 1 else ""
        cases[op, dtype].append(found)
    summary = _summary(file.with_name("summary.json"))
    whole = {(cell["op"], cell["dtype"]): cell for cell in summary.get("cells", ())}
    for (op, dtype), rows in sorted(cases.items()):
        bad = [row for row in rows if _is_bad(row)]
        worst = max((_error(row) for row in rows), default=-1.0)
        grades = [row["grade"] for row in rows if row.get("grade")]
        grade = max(grades, key=lambda word: ORDER.get(word, 3), default="")
        cell = whole.get((op, dtype), {})
        known, note = int(cell.get("known", 0)), str(cell.get("note", ""))
        content.cells.append(Cell(op, dtype, len(rows), len(bad), worst, grade, known, note))
        content.rows += [_row(op, dtype, row) for row in rows if row in bad or row.get("findings")]
    content.findings += [_finding(content, reasons, _words(summary))] if cases or reasons else []
    content.findings += [Finding("warn", text) for text in summary.get("complaints", ())]
    _operators(summary, content)
    _failures(file.with_name("error_report.csv"), content)
    _about(summary, content)


def _words(summary: dict[str, Any]) -> str:
    """The words of the command line that request the vendor, or the kernels of someone else."""
    vendor = summary.get("vendor", "")
    return str(summary.get("words") or (f"--vendor {vendor}" if vendor else ""))


def _finding(content: Content, reasons: Counter[str], words: str) -> Finding:
    wrong = sum(cell.wrong for cell in content.cells)
    known = sum(cell.known for cell in content.cells)
    count = sum(cell.count for cell in content.cells)
    skipped = _(", {total} skipped").format(total=reasons.total()) if reasons else ""
    why = tuple(
        _("{number} skipped: {reason}").format(number=number, reason=reason)
        for reason, number in reasons.most_common(3)
    )
    if not count:
        title = _("no conformance case ran{skipped}").format(skipped=skipped)
        return Finding("warn", title, why)
    if not wrong:
        title = _("{count} conformance {count:case|cases} passed{skipped}").format(
            count=count, skipped=skipped
        )
        return Finding("good", title, why)
    ops = sorted({cell.op for cell in content.cells if cell.wrong > cell.known})
    named = ", ".join(ops[:12]) + (
        _(" and {count} more").format(count=len(ops) - 12) if len(ops) > 12 else ""
    )
    gaps = _("{known} of the failures {known:is a known gap|are known gaps} of the vendor").format(
        known=known
    )
    bad = [row for row in content.rows if row.state == "wrong"]
    first = max(bad, key=lambda row: row.error, default=None)
    following = ""
    if first is not None:
        of = f" {words}" if words else ""
        following = f"deeplink conformance{of} --case '{first.part}'"
    level: Any = "warn" if known >= wrong else "bad"
    title = _("{wrong} of {count} conformance {count:case|cases} failed{skipped}").format(
        wrong=wrong, count=count, skipped=skipped
    )
    lines = tuple(filter(None, (named, gaps if known else "", *why)))
    return Finding(level, title, lines, next=following)


def _row(op: str, dtype: str, found: dict[str, Any]) -> Row:
    said = found.get("findings") or [{}]
    note = said[0].get("message") or found.get("reason") or found["status"]
    state: Any = "wrong" if _is_bad(found) else "right"
    return Row(
        op, dtype=dtype, part=found["case"], state=state, error=_error(found), note=str(note)
    )


def _is_bad(found: dict[str, Any]) -> bool:
    return found["status"] in BAD or found.get("grade") == "F"


def _error(found: dict[str, Any]) -> float:
    return min(float(found.get("error") or 0), 1e30)


def _summary(file: Path) -> dict[str, Any]:
    """summary.json; empty while the run goes on."""
    if not file.is_file():
        return {}
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def _operators(summary: dict[str, Any], content: Content) -> None:
    """The table of someone else's kernels: a row for each operator."""
    rows = summary.get("operators") or []
    if rows:
        columns = tuple(name for name in rows[0] if name != "worst")
        shown = [tuple(_shown(row[name]) for name in columns) for row in rows]
        content.tables.append(Table("Operators", columns, shown))


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _failures(file: Path, content: Content) -> None:
    """The table of failures, each with the line that reproduces it."""
    if not file.is_file():
        return
    columns = ("op", "dtype", "status", "grade", "check", "message", "gap", "reproduce")
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [tuple(row[name] for name in columns) for row in csv.DictReader(opened)]
    if rows:
        content.tables.append(Table("Failures", columns, rows[:FAILURES]))


def _about(summary: dict[str, Any], content: Content) -> None:
    origin = summary.get("origin") or {}
    if not origin:
        return
    vendor, tier = summary.get("vendor", ""), summary.get("tier", "")
    content.made_on(f"{vendor}: {origin.get('machine', '')}")
    took = f"{origin.get('seconds', 0):.0f} s, {origin.get('cpu_seconds', 0):.0f} s of CPU"
    about = {
        "command": f"deeplink conformance {_words(summary)} --tier {tier}",
        "device": origin.get("machine"),
        "vendor": vendor,
        "date": origin.get("day"),
        "duration": took,
    }
    content.add_about({**about, "torch": origin.get("torch"), "python": origin.get("python")})
