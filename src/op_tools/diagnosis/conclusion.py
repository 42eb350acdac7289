# SPDX-License-Identifier: Apache-2.0
"""The conclusion of `deeplink diagnose`: the cause of a fault, or the use of time and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from op_tools.diagnosis.report.model import Chart, Content

LINES = 6  # of a finding
LARGEST = 3  # operators, or modules
Line = tuple[str, str]  # and its style


def lines(content: Content) -> Iterator[Line]:
    """The findings; without any, the worst results that were judged."""
    bad = [each for each in content.findings if each.level == "bad"]
    for each in bad[:5]:
        yield each.title, "bold red"
        if each.site:
            yield f"  at {each.site}", ""
        yield from ((f"  {line}", "") for line in each.lines[:LINES])
    wrong = [row for row in content.rows if row.state == "wrong"]
    if not bad and wrong:
        worst = max(wrong, key=lambda row: row.error)
        where = f" in {worst.module}" if worst.module else ""
        yield f"{worst.op} is wrong{where} ({worst.site})", "bold red"


def times(content: Content) -> Iterator[str]:
    """The operators with most of the measured time."""
    whole = sum(group.ms for group in content.groups)
    ordered = sorted(content.groups, key=lambda group: -group.ms)
    for group in ordered[:LARGEST] if whole else ():
        where = ", ".join(filter(None, (group.module, group.site, group.direction)))
        yield f"time: {group.ms / whole:.0%} of {whole:.1f} ms in {group.op} ({where})"


def memory(content: Content) -> Iterator[str]:
    """The memory along the steps, and the modules with the largest results."""
    for chart in content.charts:
        if chart.kind == "memory":
            yield from _along(chart)
    sizes: dict[str, float] = defaultdict(float)
    steps = {row.step for row in content.rows if row.bytes}
    for row in content.rows:
        sizes[row.module or "(outside of modules)"] += row.bytes / max(1, len(steps))
    for module, size in sorted(sizes.items(), key=lambda pair: -pair[1])[:LARGEST]:
        if size:
            yield f"memory: {size / 2**20:.2f} MiB of results in a step by {module}"


def _along(chart: Chart) -> Iterator[str]:
    for series in chart.series:
        values = [value for value in series.values if value is not None]
        if len(values) > 1:
            labels = f"{chart.labels[0]} to {chart.labels[-1]}"
            yield (
                f"memory of the {series.name}: {values[0]:.1f} to {values[-1]:.1f} {chart.unit}, "
                f"at most {max(values):.1f} ({labels}){', it grows' if grows(values) else ''}"
            )


def grows(values: Sequence[float]) -> bool:
    """Whether the later half is above all earlier values; the start does not count."""
    rest = values[1:]
    middle = len(rest) // 2
    return middle > 0 and min(rest[middle:]) > max(rest[:middle])
