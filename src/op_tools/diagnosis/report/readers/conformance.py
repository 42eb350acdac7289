# SPDX-License-Identifier: Apache-2.0
"""The results of the conformance suite as a matrix of operators and types."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from deeplink.i18n import _
from op_tools.diagnosis.report.model import Cell, Content, Finding, Row
from op_tools.diagnosis.report.readers.tools import lines_of

BAD = ("failed", "crashed", "hung", "error")
ORDER = {"A": 0, "B": 1, "F": 2}


def results(file: Path, content: Content) -> None:
    """Read results.jsonl: a row for each wrong case, a cell for each operator and type."""
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
    for (op, dtype), rows in sorted(cases.items()):
        bad = [row for row in rows if row["status"] in BAD or row.get("grade") == "F"]
        worst = max((float(row.get("error") or 0) for row in rows), default=-1.0)
        grades = [row["grade"] for row in rows if row.get("grade")]
        grade = max(grades, key=lambda word: ORDER.get(word, 3), default="")
        content.cells.append(Cell(op, dtype, len(rows), len(bad), worst, grade))
        content.rows += [_row(op, dtype, row) for row in bad]
    wrong = sum(cell.wrong for cell in content.cells)
    count = sum(cell.count for cell in content.cells)
    skipped = _(", {total} skipped").format(total=reasons.total()) if reasons else ""
    why = tuple(
        _("{number} skipped: {reason}").format(number=number, reason=reason)
        for reason, number in reasons.most_common(3)
    )
    if wrong:
        ops = sorted({cell.op for cell in content.cells if cell.wrong})
        named = ", ".join(ops[:12]) + (
            _(" and {count} more").format(count=len(ops) - 12) if len(ops) > 12 else ""
        )
        title = _("{wrong} of {count} conformance cases failed{skipped}").format(
            wrong=wrong, count=count, skipped=skipped
        )
        content.findings.append(Finding("bad", title, (named, *why)))
    elif count:
        title = _("{count} conformance cases passed{skipped}").format(count=count, skipped=skipped)
        content.findings.append(Finding("good", title, why))
    elif reasons:
        title = _("no conformance case ran{skipped}").format(skipped=skipped)
        content.findings.append(Finding("warn", title, why))


def _row(op: str, dtype: str, found: dict[str, Any]) -> Row:
    said = found.get("findings") or [{}]
    note = said[0].get("message") or found.get("reason") or found["status"]
    error = float(found.get("error") or 0)
    return Row(op, dtype=dtype, part=found["case"], state="wrong", error=error, note=str(note))
