# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: op by dtype, grades, worst errors, commands to reproduce them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from diopi.conformance.cases.case import Result, reproduce
from diopi.conformance.results.gaps import Gap, find
from diopi.conformance.results.results import Cell, Summary

STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; } td, th { padding: 2px 8px; border: 1px solid #ddd; }
th { background: #f4f4f4; position: sticky; top: 0; } td.A { background: #d9f2d9; }
td.B { background: #fff3c4; } td.F { background: #f8c9c9; } td.gap { background: #dcdcf5; }
code { font-size: 12px; } details { margin: 2px 0; } .note { color: #666; }
"""
LEGEND = (
    "A: as exact as rounding lets it be. B: usable, worth knowing (as inexact as the CPU in this "
    "type, or a little beyond the bound). F: wrong. The number is the worst error as a multiple of "
    "what is allowed; hover for the counts. *: the adaptor runs a coarser type, whose bound counts."
)


def write(path: Path, summary: Summary, results: Sequence[Result], gaps: Sequence[Gap]) -> None:
    """Write the page as one self-contained file."""
    path.write_text(render(summary, results, gaps), "utf-8")


def render(summary: Summary, results: Sequence[Result], gaps: Sequence[Gap]) -> str:
    """Render the page as text."""
    title = f"Conformance of {escape(summary.vendor)}"
    counts = ", ".join(f"{n} {escape(word)}" for word, n in sorted(summary.counts.items()))
    grades = ", ".join(f"{escape(g or 'none')} {n}" for g, n in summary.grades.items())
    complaints = "".join(f"<li>{escape(text)}</li>" for text in summary.complaints)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{summary.cases} cases of {summary.ops} ops, tier {escape(summary.tier)}, "
        f"{escape(str(summary.origin))}. {counts}. Grades: {grades}. "
        f"{summary.unexplained} failures are not explained by a gap.</p><ul>{complaints}</ul>"
        f"<p class=note>{LEGEND}</p>{_matrix(summary.cells)}"
        f"<h2>What was found</h2>{_findings(summary, results, gaps)}</html>\n"
    )


def _matrix(cells: Sequence[Cell]) -> str:
    dtypes = sorted({cell.dtype for cell in cells})
    by_op: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        by_op[cell.op][cell.dtype] = cell
    head = "".join(f"<th>{escape(dtype)}</th>" for dtype in dtypes)
    rows = "".join(
        f"<tr><td><a href='#{escape(op)}'>{escape(op)}</a></td>"
        + "".join(_cell(row.get(dtype)) for dtype in dtypes)
        + "</tr>"
        for op, row in sorted(by_op.items())
    )
    return f"<table><tr><th>op</th>{head}</tr>{rows}</table>"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    kind = "gap" if cell.bad and cell.bad == cell.known else cell.grade
    error = f" {cell.error:.2g}" if cell.error > 0.01 else ""
    text = f"{cell.cases} cases, {cell.bad} wrong, {cell.known} known"
    text += f"; {escape(cell.note)}" if cell.note else ""
    mark = "*" if cell.note else ""
    return f"<td class={kind} title='{text}'>{cell.grade}{mark}{error}</td>"


def _findings(summary: Summary, results: Sequence[Result], gaps: Sequence[Gap]) -> str:
    by_op: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.findings:
            by_op[result.op].append(result)
    return "".join(_of_op(op, rows, summary.vendor, gaps) for op, rows in sorted(by_op.items()))


def _of_op(op: str, rows: list[Result], vendor: str, gaps: Sequence[Gap]) -> str:
    rows.sort(key=lambda row: (not row.bad, -row.error))
    lines = []
    for row in rows[:40]:
        gap = find(gaps, row) if row.bad else None
        known = f" <b>{escape(gap.kind)}: {escape(gap.reason)}</b>" if gap else ""
        lines.append(
            f"<li>{escape(row.grade)} {escape(row.message)}{known}<br>"
            f"<code>{escape(reproduce(row.case, vendor))}</code></li>"
        )
    bad = sum(row.bad for row in rows)
    return (
        f"<details id='{escape(op)}'{' open' if bad else ''}><summary>{escape(op)}: {bad} wrong, "
        f"{len(rows) - bad} worth knowing</summary><ul>{''.join(lines)}</ul></details>"
    )
