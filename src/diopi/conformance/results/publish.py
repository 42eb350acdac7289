# SPDX-License-Identifier: Apache-2.0
"""Compact report of a run for the repository: Markdown for readers, csv for programs."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from deeplink.errors import DeeplinkError
from diopi.conformance.cases.case import NOT_IMPLEMENTED, Result, parse
from diopi.conformance.execution.origin import Origin
from diopi.conformance.models import stored
from diopi.conformance.planning import guests
from diopi.conformance.results import results
from diopi.conformance.results.gaps import Gap, find
from diopi.conformance.results.operators import Operator
from diopi.conformance.results.results import Cell, Summary
from diopi.op import all_ops

COLUMNS = ("op", "dtype", "cases", "wrong", "known", "grade", "error", "worst")
REASONS = 12  # of skipped cases, the most frequent
LONGEST = 150  # maximum characters of a message
MARK = "<!-- Written by `python -m diopi.conformance --publish`; do not edit. -->"


def publish(folder: Path, target: Path, gaps: Sequence[Gap]) -> list[Path]:
    """Write `<vendor>.md` and `<vendor>.csv` from the results of a run and the current gaps.

    Return their paths.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise DeeplinkError(
            f"there is no finished run in {folder}.",
            hint="run the suite first: deeplink conformance -o DIR.",
        )
    made = json.loads(path.read_text("utf-8"))
    found = results.read(folder / "results.jsonl")
    origin = Origin(**made["origin"])
    words = made.get("words", "") if made.get("operators") else ""
    unmatched = made.get("unmatched", ())
    summary = results.summarise(
        found, gaps, made["vendor"], made["tier"], (), origin, words, unmatched
    )
    target.mkdir(parents=True, exist_ok=True)
    name = summary.vendor.replace(":", ".")
    page, rows = target / f"{name}.md", target / f"{name}.csv"
    page.write_text(render(summary, found, gaps), "utf-8")
    with rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for c in summary.cells:
            row = [c.op, c.dtype, c.cases, c.bad, c.known, c.grade, f"{c.error:.3g}", c.worst]
            writer.writerow(row)
    return [page, rows]


def render(summary: Summary, found: Sequence[Result], gaps: Sequence[Gap]) -> str:
    """Render the page."""
    ran = [result for result in found if result.status != "skipped"]
    models = sum(parse(result.case).source.startswith(stored.PREFIX) for result in ran)
    wrong = [result for result in ran if result.bad]
    own = [] if not summary.operators else ["## By operator", _operators(summary)]
    parts = [
        MARK,
        f"# Conformance of {summary.vendor}",
        f"Tier `{summary.tier}`: {summary.cases} cases of {summary.ops} ops, {models} of them "
        f"from models; {len(wrong)} wrong, {summary.unexplained} not explained.\n"
        f"{summary.origin}.",
        "[How to read this](../howto/conformance.md). Every op in every dtype: "
        f"[{summary.vendor}.csv]({summary.vendor}.csv).",
        *own,
        "## By family",
        _families(summary.cells),
        "## Checks made",
        _table(("check", "cases"), [(k, str(n)) for k, n in sorted(summary.checks.items())]),
        "## Wrong, and why",
        _known(wrong, gaps),
        "## Worth knowing (grade B)",
        _worth_knowing(ran),
        "## Not run",
        _skipped(found),
    ]
    return "\n\n".join(parts) + "\n"


def _operators(summary: Summary) -> str:
    """Render one row for each operator of someone else's kernels, and what was not matched."""
    names = [field.name for field in fields(Operator) if field.name != "worst"]
    rows = [
        [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row]
        for row in ([getattr(one, name) for name in names] for one in summary.operators)
    ]
    parts = [_table([name.replace("_", " ") for name in names], rows)]
    if summary.unmatched:
        parts.append("Not matched with an operator:")
        parts.append("\n".join(f"- {text}" for text in summary.unmatched))
    return "\n\n".join(parts)


def _families(cells: Iterable[Cell]) -> str:
    rows: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        op = all_ops().get(cell.op)
        rows[op.family if op else guests.FAMILY].append(cell)
    return _table(
        ("family", "ops", "cases", "wrong", "known", "dtypes of ops: A", "B", "F"),
        [
            (
                family,
                str(len({cell.op for cell in mine})),
                str(sum(cell.cases for cell in mine)),
                str(sum(cell.bad for cell in mine)),
                str(sum(cell.known for cell in mine)),
                *(str(sum(cell.grade == grade for cell in mine)) for grade in "ABF"),
            )
            for family, mine in sorted(rows.items())
        ],
    )


def _known(wrong: Sequence[Result], gaps: Sequence[Gap]) -> str:
    """Render the failures by the gap that explains them; unexplained ones one by one."""
    if not wrong:
        return "Nothing."
    by_gap: dict[Gap | None, list[Result]] = defaultdict(list)
    for result in wrong:
        by_gap[find(gaps, result)].append(result)
    rows = [
        (result.op, result.dtype, result.check, "1", "not explained", f"`{result.case}`")
        for result in by_gap.pop(None, [])
    ]
    rows += [
        (gap.op, gap.dtype, gap.check, str(len(mine)), f"{gap.kind}: {gap.reason}",
         f"`{mine[0].case}`")
        for gap, mine in by_gap.items() if gap
    ]  # fmt: skip
    return _table(("op", "dtype", "check", "cases", "why", "the first"), sorted(rows))


def _worth_knowing(ran: Sequence[Result]) -> str:
    """Render one row for each op and check: count, dtypes, and the worst case."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in ran:
        if result.grade == "B":
            groups[result.op, result.check].append(result)
    if not groups:
        return "Nothing."
    rows = []
    for (op, check), mine in sorted(groups.items()):
        worst = max(mine, key=lambda r: r.error)
        text = next(f.message for f in worst.findings)[:LONGEST].replace("|", "/")
        dtypes = ", ".join(sorted({r.dtype for r in mine}))
        rows.append((op, check, dtypes, str(len(mine)), text))
    return _table(("op", "check", "dtypes", "cases", "the worst"), rows)


def _skipped(found: Sequence[Result]) -> str:
    left = [result.reason for result in found if result.status == "skipped"]
    if not left:
        return "No case was skipped."
    reasons = Counter(_short(reason) for reason in left)
    rows = [(reason, str(n)) for reason, n in reasons.most_common(REASONS)]
    rest = len(left) - sum(int(n) for _, n in rows)
    rows += [("other reasons", str(rest))] if rest else []
    return f"{len(left)} variations of samples:\n\n" + _table(("why", "cases"), rows)


def _short(reason: str) -> str:
    """Return a message without its values, as the topic of a group."""
    if reason.startswith(NOT_IMPLEMENTED):
        return "the vendor has no kernel for these arguments"
    return "the CPU refuses the call" if reason.startswith("the CPU refuses") else reason[:90]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
