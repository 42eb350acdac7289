# SPDX-License-Identifier: Apache-2.0
"""Exports of a page: a trace for Perfetto, and TensorBoard if it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.diagnosis.report.model import Content


def perfetto(content: Content, path: Path) -> int:
    """Write a trace for ui.perfetto.dev, with calls by direction and modules above them; returns
    the number of slices.
    """
    lanes = {"modules": 1}
    events: list[dict[str, Any]] = []
    for name, start, took in content.modules:
        events.append(_slice(name, 1, start, took, {}))
    for row in content.rows:
        if row.start < 0:
            continue
        lane = lanes.setdefault(row.direction, len(lanes) + 1)
        about = {"step": row.step, "module": row.module, "line": row.site, "shape": row.shape}
        about["state"] = row.state
        events.append(_slice(row.op, lane, row.start, row.took, about))
    if not events:
        raise DeeplinkError(
            _("this run has no timeline, so there is no trace to write."),
            "`deeplink run --time --trace trace.json train.py` records one.",
        )
    names = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for name, tid in lanes.items()
    ]
    path.write_text(json.dumps([*names, *events]), "utf-8")
    return len(events)


def _slice(
    name: str, lane: int, start: float, took: float, about: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": 1,
        "tid": lane,
        "name": name,
        "ts": start,
        "dur": took,
        "args": about,
    }


def tensorboard(content: Content, folder: Path) -> int:
    """Write charts as scalars, times of operators and findings as text; returns the number of
    values.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DeeplinkError(
            _("TensorBoard is not installed ({error}).").format(error=error),
            "pip install tensorboard.",
        ) from None
    count = 0
    with SummaryWriter(str(folder)) as writer:
        for chart in content.charts:
            for series in chart.series:
                for place, value in enumerate(series.values):
                    if value is not None:
                        writer.add_scalar(f"{chart.title}/{series.name}", value, place)
                        count += 1
        for step, total in sorted(_by_step(content).items()):
            writer.add_scalar("time of the device/ms", total, step)
            count += 1
        for place, finding in enumerate(content.findings):
            text = "\n\n".join((f"**{finding.title}**", *finding.lines))
            writer.add_text("findings", text, place)
            count += 1
    return count


def _by_step(content: Content) -> dict[int, float]:
    found: dict[int, float] = {}
    for row in content.rows:
        if row.ms >= 0:
            found[row.step] = found.get(row.step, 0.0) + row.ms
    return found
