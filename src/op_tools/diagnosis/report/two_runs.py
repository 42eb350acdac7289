# SPDX-License-Identifier: Apache-2.0
"""Two runs on one page: `deeplink report A B`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from op_tools.diagnosis.report.model import Chart, Content, Finding, Series

NAMES = ("A", "B")
Summaries = Callable[[Content], list[dict[str, Any]]]


def merge(
    runs: Sequence[Content],
    findings: Callable[[Content], list[Finding]],
    charts: Callable[[Content], list[Chart]],
    cells: Callable[[Content], list[Any]],
    operators: Summaries,
) -> Content:
    """One content from two: rows and findings know their run, charts have the lines of both.

    The functions compute a part of one run; they are those of `summary`.
    """
    made = Content(
        title=" | ".join(f"{name}: {run.title}" for name, run in zip(NAMES, runs, strict=True))
    )
    made.unit = runs[0].unit
    parts = [charts(run) for run in runs]
    tables = [operators(run) for run in runs]
    for number, (name, run) in enumerate(zip(NAMES, runs, strict=True)):
        made.rows += [replace(row, run=number) for row in run.rows]
        made.findings += [replace(each, run=number) for each in findings(run)]
        made.cells += [replace(each, dtype=f"{each.dtype} {name}") for each in cells(run)]
        made.groups += run.groups
        made.clock = made.clock or run.clock
        made.tables += [replace(each, title=f"{name}: {each.title}") for each in run.tables]
        made.sources += [(f"{name}: {file}", what) for file, what in run.sources]
        made.problems += [f"{name}: {text}" for text in run.problems]
        made.notes += [f"{name}: {text}" for text in run.notes]
        for device in run.devices:
            made.made_on(f"{name}: {device}")
        made.runs.append({"name": f"{name}: {run.title}", **run.about})
    made.charts = _charts(parts)
    made.pairs = _pairs(tables)
    return made


def _pairs(tables: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The operators of both runs in one list, in the order of the worse run."""
    found: dict[str, dict[str, Any]] = {}
    for name, rows in zip(NAMES, tables, strict=True):
        for row in rows:
            found.setdefault(row["op"], {"op": row["op"], "A": None, "B": None})[name] = row

    def order(pair: dict[str, Any]) -> tuple[float, ...]:
        both = [pair[name] for name in NAMES if pair[name] is not None]
        return tuple(-max(each[key] for each in both) for key in ("wrong", "worst", "ms"))

    return sorted(found.values(), key=order)


def _charts(parts: Sequence[list[Chart]]) -> list[Chart]:
    """The charts of both runs; charts of one title share one drawing."""
    merged: list[Chart] = []
    rest = list(parts[1])
    for chart in parts[0]:
        other = next((c for c in rest if (c.kind, c.title) == (chart.kind, chart.title)), None)
        if other is not None:
            rest.remove(other)
        merged.append(_named("A", chart) if other is None else _together(chart, other))
    return [*merged, *(_named("B", chart) for chart in rest)]


def _named(name: str, chart: Chart) -> Chart:
    return replace(chart, series=[Series(f"{name}: {s.name}", s.values) for s in chart.series])


def _together(first: Chart, second: Chart) -> Chart:
    keys = [_keys(chart.labels) for chart in (first, second)]
    places = {key: place for place, key in enumerate(keys[0])}
    for key in keys[1]:
        places.setdefault(key, len(places))
    series: list[Series] = []
    for name, chart, own in zip(NAMES, (first, second), keys, strict=True):
        for line in chart.series:
            values: list[float | None] = [None] * len(places)
            for key, value in zip(own, line.values, strict=True):
                values[places[key]] = value
            series.append(Series(f"{name}: {line.name}", values))
    return replace(first, labels=[label for label, _ in places], series=series)


def _keys(labels: Sequence[str]) -> list[tuple[str, int]]:
    """Each label with its number among those of the same text."""
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        found.append((label, seen[label]))
        seen[label] += 1
    return found
