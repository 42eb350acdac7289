# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's lines as charts, and its events as findings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from deeplink import identity
from deeplink.i18n import _, recognized
from op_tools.diagnosis.flight_recorder import stacks
from op_tools.diagnosis.report.model import Chart, Content, Finding, Row, Series
from op_tools.diagnosis.report.readers.tools import lines_of, made_on

TITLES = {
    "nan": _("A NaN in the run"),
    "spike": _("The loss jumps"),
    "exception": _("The program raised"),
    "signal": _("The program was ended by a signal"),
    "hang": _("The program hangs"),
}


def steps(file: Path, content: Content) -> None:
    """Read a file of a recorder. The later of its two files is read with the earlier one; copies
    repeat lines.
    """
    if not file.name.endswith((".0.jsonl", ".1.jsonl")):
        return
    if file.name.endswith(".1.jsonl") and file.with_name(_other(file)).exists():
        return  # read with the other file
    both = [file, file.with_name(_other(file))]
    lines = [line for each in both if each.exists() for line in lines_of(each)]
    lines.sort(key=lambda line: line.get("at") or line.get("begin") or line.get("end") or 0.0)
    for line in lines:
        made = identity.read(line)
        if made is not None:
            content.made_on(str(made))
            content.add_about(made_on(made))
    taken = [line for line in lines if "step" in line and "event" not in line]
    for line in lines:
        if "event" in line:
            content.findings.append(_finding(line, taken))
    if taken:
        _charts(taken, content)
        content.rows += _rows(taken)
    if not any("end" in line for line in lines):
        last = (
            _("the last step is {step}").format(step=taken[-1]["step"])
            if taken
            else _("no step was recorded")
        )
        content.findings.append(
            Finding(
                "warn", _("The recorder has no end: the process was killed, or goes on"), (last,)
            )
        )


def _finding(event: dict[str, Any], taken: list[dict[str, Any]]) -> Finding:
    hangs = event["event"] == "hang"  # there the innermost frames come first
    stack = [str(each).strip() for each in event.get("stack", [])]
    said = stack[:24] if hangs else stack[-12:]
    title = TITLES.get(event["event"], event["event"])
    symptom, *more = map(recognized, str(event["text"]).split("; "))
    lines = (*more, *said, *_after(event, taken))
    site, following = stacks.site(stack, hangs), str(event.get("next", ""))
    text = _("{title}: {text}").format(title=title, text=symptom)
    return Finding("bad", text, lines, site, next=following)


def _after(event: dict[str, Any], taken: list[dict[str, Any]]) -> list[str]:
    """The metrics of the steps that were recorded in full after an event."""
    whole = [line for line in taken if line["step"] >= event["step"] and line.get("modules")]
    if event["event"] != "nan" or not whole:
        return []
    first = whole[0]
    words = {"params": "parameters", "modules": "results of modules", "grads": "gradients"}
    found = []
    for key, word in words.items():
        bad = [name for name, each in first.get(key, {}).items() if each[2]]
        names = [name.partition(" ")[2] if key == "modules" else name for name in bad[:4]]
        if bad:
            more = ", …" if len(bad) > 4 else ""
            found.append(
                _("step {step}: bad {word}: {names}{more}").format(
                    step=first["step"], word=word, names=", ".join(names), more=more
                )
            )
    return found


def _other(file: Path) -> str:
    stem, turn = file.name.removesuffix(".jsonl").rsplit(".", 1)
    return f"{stem}.{1 - int(turn)}.jsonl"


def _charts(taken: list[dict[str, Any]], content: Content) -> None:
    labels = [f"step {line['step']}" for line in taken]
    losses = [Series("loss", [_loss(line) for line in taken])]
    content.charts.append(Chart("steps", "Loss", "steps", "loss", labels, losses))
    times = [Series("ms", [line.get("ms") for line in taken])]
    content.charts.append(Chart("steps", "Time of a step", "steps", "ms", labels, times))
    norms = [_largest(line.get("grads")) for line in taken]
    if any(value is not None for value in norms):
        title = "The largest of the recorded gradients"
        series = [Series("largest", norms)]
        content.charts.append(Chart("steps", title, "steps", "|value|", labels, series, True))
    with_memory = [line for line in taken if "memory" in line]
    if with_memory:
        names = [f"step {line['step']}" for line in with_memory]
        series = [
            Series(word, [line["memory"].get(word, 0) / 2**20 for line in with_memory])
            for word in ("process", "device")
            if any(word in line["memory"] for line in with_memory)
        ]
        content.charts.append(Chart("memory", "Memory", "steps", "MiB", names, series))


def _largest(figures: dict[str, Any] | None) -> float | None:
    if any(each[2] for each in (figures or {}).values()):
        return math.nan
    found = [each[0] for each in (figures or {}).values() if each[0] is not None]
    return max(found, default=None)


def _loss(line: dict[str, Any]) -> float | None:
    """The loss of a step: None if it was not recorded, NaN if it was not finite."""
    if "loss" not in line:
        return None
    return math.nan if line["loss"] is None else float(line["loss"])


def _rows(taken: list[dict[str, Any]]) -> list[Row]:
    """Gradients, parameters and results of modules, as rows of the page."""
    words = {"grads": "gradient", "params": "parameter", "modules": "result of a module"}
    found = []
    for line in taken:
        for key, word in words.items():
            for name, (largest, norm, nonfinite, _count) in line.get(key, {}).items():
                path = name.partition(" ")[2] if key == "modules" else name
                direction = "backward" if key == "grads" else "forward"
                row = Row(word, direction, line["step"], path, norm=norm)
                row.low = row.high = largest
                row.state = "nonfinite" if nonfinite else "unknown"
                found.append(row)
    return found
