# SPDX-License-Identifier: Apache-2.0
"""The summary of a page: findings, metrics, operators with the worst first, and growth."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deeplink.i18n import _
from op_tools.core import op_names
from op_tools.diagnosis.report import two_runs
from op_tools.diagnosis.report.model import Cell, Chart, Content, Finding, Row, Series
from op_tools.diagnosis.report.readers.tools import worst_finding

POINTS = 1500  # of a chart's line; the largest of each stretch is kept


@dataclass
class _Operator:
    op: str
    calls: int = 0
    wrong: int = 0
    nonfinite: int = 0
    worst: float = -1.0
    ms: float = 0.0
    timed: int = 0
    bytes: float = 0.0
    where: set[str] = field(default_factory=set)


def of(content: Content) -> dict[str, Any]:
    """The parts of the description that are computed from the rows."""
    return {
        "findings": [asdict(each) for each in findings_of(content)],
        "operators": operators_of(content),
        "pairs": content.pairs,
        "cells": [asdict(cell) for cell in cells_of(content)],
        "results": _by_module(content.rows),
        "charts": [_chart_fields(chart) for chart in charts_of(content)],
    }


def findings_of(content: Content) -> list[Finding]:
    """The findings of the readers and those that the rows show, the worst first."""
    if content.runs:  # of two runs, each has its findings
        return _worst_first(content.findings)
    found = list(content.findings)
    worst = worst_finding(content)
    if worst is not None and not any(each.level == "bad" for each in found):
        found.insert(0, worst)
    broken = _first_nonfinite(content)
    if broken is not None:
        found.append(broken)
    if not found:
        found.append(_nothing_wrong(content))
    return _worst_first(found)


def _worst_first(found: list[Finding]) -> list[Finding]:
    order = {"bad": 0, "warn": 1, "info": 2, "good": 3}
    return sorted(found, key=lambda each: order[each.level])


def charts_of(content: Content) -> list[Chart]:
    """The charts of the readers, and the errors or magnitudes along the rows."""
    if content.cells or any(chart.kind == "growth" for chart in content.charts):
        return content.charts  # a suite has no order of calls
    judged = any(row.error >= 0 for row in content.rows)
    return [*content.charts, *(_growth(content.rows) if judged or not content.charts else ())]


def side_by_side(first: Content, second: Content) -> Content:
    """The content of a page for two runs: rows and findings know their run, and charts have the
    lines of both.
    """
    return two_runs.merge((first, second), findings_of, charts_of, cells_of, operators_of)


def cells_of(content: Content) -> list[Cell]:
    """The operators by data type."""
    return content.cells or _cells(content.rows)


def _chart_fields(chart: Chart) -> dict[str, Any]:
    """A chart for the script; `marks` are the places of a series that are NaN or Inf."""
    fields = asdict(thinned(chart))
    for series in fields["series"]:
        series["marks"] = [
            [at, "NaN" if math.isnan(value) else "Inf"]
            for at, value in enumerate(series["values"])
            if value is not None and not math.isfinite(value)
        ]
    return fields


def _first_nonfinite(content: Content) -> Finding | None:
    rows = [row for row in content.rows if row.state == "nonfinite"]
    if not rows or any("NaN" in each.title for each in content.findings):
        return None
    first = rows[0]
    title = _("{calls} returned values that are not finite; the first: {op}").format(
        calls=_calls(len(rows)), op=first.op
    )
    lines = (_("the -inf of a mask is correct"),)
    where = _("step {step}, {module}, {direction}").format(
        step=first.step, module=first.module or _("outside of modules"), direction=first.direction
    )
    return Finding("info", title, lines, first.site, where, next="deeplink why-nan train.py")


def _nothing_wrong(content: Content) -> Finding:
    judged = sum(row.error >= 0 for row in content.rows)
    if judged:
        return Finding(
            "good",
            _(
                "{judged:,} {judged:result was|results were} compared, and "
                "{judged:is|all are} correct"
            ).format(judged=judged),
        )
    if content.groups:
        slowest = max(operators_of(content), key=lambda each: float(each["ms"]))
        whole = sum(group.ms for group in content.groups)
        share = f"{slowest['ms'] / whole:.0%} of {whole:.1f} ms" if whole else ""
        return Finding("info", _("Most time goes to {op}").format(op=slowest["op"]), (share,))
    steps = next((len(chart.labels) for chart in content.charts if chart.kind == "steps"), 0)
    if steps:
        text = _("{steps:,} {steps:step was|steps were} recorded, without an event").format(
            steps=steps
        )
        return Finding("good", text)
    return Finding("info", _("{calls}, no comparison data").format(calls=_calls(len(content.rows))))


def _calls(count: int) -> str:
    return _("{count:,} {count:call|calls}").format(count=count)


def operators_of(content: Content) -> list[dict[str, Any]]:
    """Rows by operator, sorted by errors, time and calls."""
    found: dict[str, _Operator] = {}
    for row in content.rows:
        one = found.setdefault(row.op, _Operator(row.op))
        one.calls += 1
        one.wrong += row.state == "wrong"
        one.nonfinite += row.state == "nonfinite"
        one.worst = max(one.worst, row.error)
        one.bytes += row.bytes
        one.where.add(row.module)
        if row.ms >= 0 and not content.groups:
            one.ms += row.ms
            one.timed += 1
    for group in content.groups:
        one = found.setdefault(group.op, _Operator(group.op))
        one.ms += group.ms
        one.timed += group.calls
        if not content.rows:
            one.calls += group.calls
        one.where.add(group.module)
    ordered = sorted(
        found.values(), key=lambda o: (-o.wrong, -o.nonfinite, -o.worst, -o.ms, -o.calls)
    )
    whole = sum(one.ms for one in ordered)
    return [
        {
            **{key: value for key, value in vars(one).items() if key != "where"},
            "modules": len(one.where),
            "share": one.ms / whole if whole else 0.0,
        }
        for one in ordered
    ]


def _cells(rows: list[Row]) -> list[Cell]:
    kinds: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.dtype:
            kinds[row.op, row.dtype].append(row)
    return [
        Cell(
            *(op, dtype, len(some)),
            sum(row.state in ("wrong", "nonfinite") for row in some),
            max(row.error for row in some),
        )
        for (op, dtype), some in sorted(kinds.items())
    ]


def _growth(rows: list[Row]) -> list[Chart]:
    """Errors along the run if results were judged, else magnitudes of values."""
    judged = [row for row in rows if row.error >= 0]
    if judged:
        labels = [_label(row) for row in judged]
        series = [_picked(judged, word, lambda row: row.error) for word in _directions(judged)]
        title, unit = "Errors along the run", "times the tolerance"
        axis = "results, in the order of the run"
        return [Chart("growth", title, axis, unit, labels, series, True, 1.0)]
    seen = [row for row in rows if row.low is not None and row.high is not None]
    seen = [row for row in seen if op_names.last(row.op) not in op_names.UNINITIALISED]
    if not seen:
        return []
    labels = [_label(row) for row in seen]
    series = [_picked(seen, word, _largest) for word in _directions(seen)]
    axis, title = "calls, in their order", "The largest value along the run"
    return [Chart("growth", title, axis, "|value|", labels, series, True)]


def _largest(row: Row) -> float | None:
    found = max(abs(row.low or 0.0), abs(row.high or 0.0))
    return found if found and math.isfinite(found) else None


def _directions(rows: list[Row]) -> list[str]:
    return [word for word in ("forward", "backward") if any(r.direction == word for r in rows)]


def _picked(rows: list[Row], direction: str, of: Any) -> Series:
    return Series(direction, [of(row) if row.direction == direction else None for row in rows])


def _label(row: Row) -> str:
    where = f" in {row.module}" if row.module else ""
    return f"step {row.step}: {row.op} {row.part}{where}".replace("  ", " ")


def _by_module(rows: list[Row]) -> list[dict[str, Any]]:
    """Bytes of results in one step by module, the most first."""
    found: dict[str, float] = defaultdict(float)
    steps = {row.step for row in rows} or {0}
    for row in rows:
        found[row.module] += row.bytes / len(steps)
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return [{"module": name, "bytes": count} for name, count in ordered if count][:20]


def thinned(chart: Chart) -> Chart:
    """Few enough points to plot, with every peak."""
    count = len(chart.labels)
    if count <= POINTS:
        return chart
    edges = [round(i * count / POINTS) for i in range(POINTS + 1)]
    spans = list(itertools.pairwise(edges))

    def peak(values: list[float | None], start: int, end: int) -> float | None:
        kept = [value for value in values[start:end] if value is not None]
        broken = next((value for value in kept if not math.isfinite(value)), None)
        return broken if broken is not None else max(kept, default=None)

    series = [Series(s.name, [peak(s.values, *span) for span in spans]) for s in chart.series]
    return replace(chart, labels=[chart.labels[start] for start, _ in spans], series=series)
