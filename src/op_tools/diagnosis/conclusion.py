# SPDX-License-Identifier: Apache-2.0
"""The conclusion of `deeplink diagnose`: the cause of a fault, or the use of time and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from deeplink.i18n import _, joined
from op_tools.core.problem import Problem
from op_tools.diagnosis.report.model import Chart, Content
from op_tools.diagnosis.report.readers.tools import worst_finding

LINES = 6  # of a finding
LARGEST = 3  # operators, or modules
Line = tuple[str, str]  # and its style


def lines(content: Content) -> Iterator[Line]:
    """The findings, in the format of a verdict; without any, the worst results that were judged."""
    bad = [each for each in content.findings if each.level == "bad"]
    if not bad:
        worst = worst_finding(content)
        bad = [worst] if worst is not None else []
    for each in bad[:5]:
        where = joined(", ", filter(None, (each.site, each.where)))
        problem = Problem(each.title, where, each.lines[:LINES], each.workaround, each.next)
        for at, line in enumerate(problem.lines()):
            yield line, "bold red" if at == 0 else ""


def times(content: Content) -> Iterator[str]:
    """The operators with most of the measured time."""
    whole = sum(group.ms for group in content.groups)
    ordered = sorted(content.groups, key=lambda group: -group.ms)
    for group in ordered[:LARGEST] if whole else ():
        where = ", ".join(filter(None, (group.module, group.site, group.direction)))
        yield _("time: {share:.0%} of {whole:.1f} ms in {op} ({where})").format(
            share=group.ms / whole, whole=whole, op=group.op, where=where
        )


def memory(content: Content) -> Iterator[str]:
    """The memory along the steps, and the modules with the largest results."""
    for chart in content.charts:
        if chart.kind == "memory":
            yield from _along(chart)
    sizes: dict[str, float] = defaultdict(float)
    steps = {row.step for row in content.rows if row.bytes}
    for row in content.rows:
        sizes[row.module or _("(outside of modules)")] += row.bytes / max(1, len(steps))
    for module, size in sorted(sizes.items(), key=lambda pair: -pair[1])[:LARGEST]:
        if size:
            yield _("memory: {size:.2f} MiB of results in a step by {module}").format(
                size=size / 2**20, module=module
            )


def _along(chart: Chart) -> Iterator[str]:
    for series in chart.series:
        values = [value for value in series.values if value is not None]
        if len(values) > 1:
            labels = _("{first} to {last}").format(first=chart.labels[0], last=chart.labels[-1])
            yield (
                _(
                    "memory of the {name}: {first:.1f} to {last:.1f} {unit}, at most {max:.1f} "
                    "({labels}){more}"
                ).format(
                    name=series.name,
                    first=values[0],
                    last=values[-1],
                    unit=chart.unit,
                    max=max(values),
                    labels=labels,
                    more=_(", it grows") if grows(values) else "",
                )
            )


def grows(values: Sequence[float]) -> bool:
    """Whether the later half is above all earlier values; the start does not count."""
    rest = values[1:]
    middle = len(rest) // 2
    return middle > 0 and min(rest[middle:]) > max(rest[:middle])
