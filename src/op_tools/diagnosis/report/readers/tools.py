# SPDX-License-Identifier: Apache-2.0
"""The files of the operator tools, as rows of a page."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from deeplink import identity
from deeplink.i18n import _, joined, recognized
from op_tools.capture import Archive, find_folders
from op_tools.core.problem import program_in
from op_tools.diagnosis.report.model import Chart, Content, Finding, Group, Row, Series

_TENSOR = re.compile(r"(float|bfloat|int|uint|bool|complex)(\d*\w*)(\([\d, ]*\))")
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}


def lines_of(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSON file; a truncated line (kill -9) is left out."""
    with file.open("rb") as opened:
        for line in opened:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


# Comparisons.


def comparisons(file: Path, content: Content) -> None:
    """Read the verdicts of OpAutoCompare: a row for each result and gradient."""
    for found in lines_of(file):
        if found["item"].startswith("input") and found["passed"]:
            continue  # an argument that is not written
        ratio = float(found["ratio"])
        content.rows.append(
            Row(
                found["op"],
                found["direction"],
                found["step"],
                found["module"],
                found["site"],
                found["dtype"],
                shape_text(found["shape"]),
                found["item"],
                "right" if found["passed"] else "wrong",
                error=ratio if math.isfinite(ratio) else 1e30,
                note=found["message"],
            )
        )


def verdicts(file: Path, content: Content) -> None:
    """Read the verdicts of OpAutoCompare or Guard, one for each wrong operator."""
    for op, found in json.loads(file.read_text("utf-8")).items():
        part, _colon, message = found["problem"].removeprefix(f"{op}, ").partition(": ")
        site = site_of(found["where"])
        where = ", ".join((part, found["where"].removeprefix(site).strip(" ,")))
        lines = tuple(map(recognized, (message, *found["evidence"])))
        if op in content.explained:  # by a search, whose finding gets the evidence
            known = content.findings[content.explained[op]]
            more = tuple(line for line in lines if line not in known.lines)
            content.findings[content.explained[op]] = replace(known, lines=(*more, *known.lines))
            continue
        title = _("{op} is wrong").format(op=op)
        content.findings.append(
            Finding("bad", title, lines, site, where, found["workaround"], found["next"])
        )


def run_record(found: dict[str, Any], content: Content) -> None:
    """Read run.json of a run folder, or run_pid….json of a process: how the run was made."""
    made = identity.read(found)
    about: dict[str, Any] = {"status": found.get("status"), "deeplink": found.get("deeplink")}
    command = found.get("command") or ""
    about["command"] = command if isinstance(command, str) else shlex.join(map(str, command))
    if made is not None:
        content.made_on(str(made))
        about |= made_on(made)
    if found.get("started"):
        about["date"] = str(found["started"]).replace("T", " ")
    if found.get("begin"):
        about["date"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["begin"]))
    if found.get("seconds") is not None:
        about["duration"] = f"{found['seconds']:.1f} s"
    content.add_about(about)


def made_on(made: identity.Identity) -> dict[str, str]:
    """A device and its versions, for the header of the page."""
    return {
        "device": f"{made.label} (device {made.device})",
        "vendor": made.vendor,
        "torch": made.torch,
        "python": made.python,
        "host": made.host,
    }


def comparison_table(file: Path, content: Content) -> None:
    """Read the classic table of a run without other files."""
    with file.open(newline="", encoding="utf-8") as opened:
        for found in csv.DictReader(opened):
            op, _, item = found["name"].partition(" ")
            if found["allclose"] is None or item.startswith("input"):
                continue
            passed = found["allclose"] == "True"
            bound = float(found["atol"] or 0)
            error = float(found["max_abs_diff"] or 0) / bound if bound else 0.0
            state: Any = "right" if passed else "wrong"
            row = Row(op, part=item, state=state, error=error, note=found["error_info"] or "")
            row.direction = "backward" if item.startswith("grad") else "forward"
            content.rows.append(row)


# Times.


def time_groups(file: Path, content: Content) -> None:
    """Read OpTimeMeasure's groups, with forward and backward separate."""
    found = json.loads(file.read_text("utf-8"))
    for each in found["groups"]:
        for word, prefix in (("forward", ""), ("backward", "backward_")):
            times = each[word]
            if times["calls"]:
                content.groups.append(
                    Group(
                        *(each["op"], each["shape"], each["module"], each["site"], word),
                        *(times["calls"], times["total"], times["p50"], times["p95"]),
                        *(each[f"{prefix}flops"], each[f"{prefix}bytes"]),
                    )
                )


def times(file: Path, content: Content) -> None:
    """Read the classic table of times; without a trace, the timeline shows the
    calls in sequence.
    """
    if content.clock == "us":
        return
    content.clock = "ms in order"
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened) if row["unit"]]
    at = 0.0
    for found in sorted(rows, key=lambda row: int(row["forward_id"])):
        dtype, shape = first_tensor(found["output"])
        for word in ("forward", "backward"):
            text = found[f"{word}_elasped"]
            if text in ("-", ""):
                continue
            ms = float(text)
            row = Row(found["name"], word, dtype=dtype, shape=shape, ms=ms)
            row.start, row.took = at, ms * 1e3
            row.bytes = bytes_of(dtype, shape)
            content.rows.append(row)
            at += row.took


def trace(events: list[dict[str, Any]], content: Content) -> None:
    """Read a trace of OpTimeMeasure or of another tool."""
    slices = _within([event for event in events if event.get("ph") == "X"])
    if not slices:
        return
    content.rows = [row for row in content.rows if row.ms < 0]  # the table of times has less
    content.clock = "us"
    zero = min(event["ts"] for event in slices)
    for event in slices:
        about, start = event.get("args") or {}, event["ts"] - zero
        if event.get("cat") == "module":
            content.modules.append((event["name"], start, event["dur"]))
        elif event.get("cat") != "launch":
            dtype, shape = first_tensor(str(about.get("arguments", "")))
            row = Row(event["name"], event.get("cat", "forward"), int(about.get("step", 0)))
            row.module, row.site = about.get("module", ""), site_of(about.get("line", ""))
            row.dtype, row.shape = dtype, shape
            row.start, row.took, row.ms = start, event["dur"], event["dur"] / 1e3
            row.bytes = bytes_of(dtype, shape)
            content.rows.append(row)


def _within(slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the modules of steps without observed calls."""
    watched = [event for event in slices if event.get("cat") not in ("module", "launch")]
    if not watched:
        return slices
    first = min(event["ts"] for event in watched)
    last = max(event["ts"] + event["dur"] for event in watched)
    return [
        event for event in slices if first <= event["ts"] + event["dur"] and event["ts"] <= last
    ]


# Statistics and captures.


def statistics(file: Path, content: Content) -> None:
    """Read the statistics of each call's results; the timeline is the order of the calls."""
    if not content.clock:
        content.clock = "calls"
    at = sum(row.start >= 0 for row in content.rows)
    for place, found in enumerate(lines_of(file)):
        made = found.get("outputs") or found.get("grad_inputs") or []
        first: dict[str, Any] = next((each for each in made if each), {})
        broken = any(each and each.get("nonfinite") for each in made)
        row = Row(found["op"], found["direction"], found["step"], found["module"], found["site"])
        row.dtype, row.shape = first.get("dtype", ""), shape_text(first.get("shape", ()))
        row.state = "nonfinite" if broken else "unknown"
        row.low, row.high, row.norm = (first.get(key) for key in ("min", "max", "norm"))
        row.bytes = sum(bytes_of(e["dtype"], shape_text(e["shape"])) for e in made if e)
        row.note = (
            _("{nonfinite} {nonfinite:value is|values are} not finite").format(
                nonfinite=first["nonfinite"]
            )
            if broken and first
            else ""
        )
        if content.clock == "calls":
            row.start, row.took = at + place, 1.0
        content.rows.append(row)


def archive(file: Path, content: Content) -> None:
    """Read the headers of the calls of a packed archive."""
    found = Archive(file)
    if not content.clock:
        content.clock = "calls"
    at = sum(row.start >= 0 for row in content.rows)
    for place, number in enumerate(found):
        row = captured(found.header(number))
        made = found.results(number)
        if made:
            row.dtype, row.shape = made[0][0], shape_text(made[0][1])
            row.bytes = sum(bytes_of(dtype, shape_text(shape)) for dtype, shape in made)
        if content.clock == "calls":
            row.start, row.took = at + place, 1.0
        content.rows.append(row)
    if found.problem:
        content.problems.append(f"{file.name}: {found.problem}")


def folders(run: Path, content: Content) -> None:
    """Read the calls of the folder format."""
    seen = 0
    for folder in find_folders(run):
        if {"autocompare", "cpu", "device"} & set(folder.relative_to(run).parts):
            continue  # of a comparison, which is shown separately
        parts = folder.relative_to(run).parts
        name = next((part for part in parts if part.startswith(("torch.", "aten."))), folder.name)
        content.rows.append(Row(name, note=str(folder)))
        seen += 1
    if seen:
        content.sources.append((f"{seen} folders", "captured calls"))


def captured(header: Any) -> Row:
    """A row for the header of a captured call."""
    site = header.get("site") or ""
    return Row(
        header["name"],
        header.get("direction", "forward"),
        int(header.get("step", 0)),
        header.get("module", ""),
        site if isinstance(site, str) else f"{site[0]}:{site[1]}",
        note=f"call {header.get('id', '')}",
    )


def monitor(file: Path, content: Content) -> None:
    """Read the memory of a process."""
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    names = {"rss(MB)": "process", "device_memusage(MB)": "device"}
    series = [
        Series(name, [float(row[key] or 0) for row in rows])
        for key, name in names.items()
        if rows and key in rows[0]
    ]
    labels = [row["runningtime(Seconds)"] for row in rows]
    content.charts.append(Chart("memory", "Memory of the process", "s", "MB", labels, series))


# Texts.


def first_tensor(text: str) -> tuple[str, str]:
    """Type and shape of the first tensor in `float32(16, 8), weight=…`."""
    found = _TENSOR.search(text)
    if found is None:
        return "", ""
    shape = found[3].strip("()").replace(" ", "").rstrip(",")
    return found[1] + found[2], f"[{shape.replace(',', ', ')}]"


def shape_text(shape: Any) -> str:
    return f"[{', '.join(map(str, shape))}]"


def bytes_of(dtype: str, shape: str) -> float:
    sizes = [int(word) for word in shape.strip("[]").split(",") if word.strip()]
    return math.prod(sizes) * SIZES.get(dtype, 1) if dtype else 0.0


def site_of(text: str) -> str:
    """`/a/b.py:12` of `/a/b.py:12 forward: y = f(x)`."""
    found = re.match(r"(.+?:\d+)\b", text)
    return found[1] if found else ""


def worst_finding(content: Content) -> Finding | None:
    """Describe the comparison with the largest error, for runs without a file of verdicts."""
    wrong = [row for row in content.rows if row.state == "wrong"]
    if not wrong:
        return None
    first = max(wrong, key=lambda row: row.error)
    ops = sorted({row.op for row in wrong})
    lines = [first.note or _("{part} is wrong").format(part=first.part)]
    lines.append(_("error: {error:,.3g} times the tolerance").format(error=first.error))
    if len(ops) > 1:
        lines.append(
            _("also wrong: {names}").format(names=", ".join(op for op in ops if op != first.op))
        )
    where = joined(
        ", ",
        (
            *([_("module {module}").format(module=first.module)] if first.module else []),
            *filter(None, (first.part, first.direction)),
            _("step {step}").format(step=first.step),
        ),
    )
    program = program_in(content.about.get("command", ""))
    workaround = f"deeplink run --fallback {first.op} {program}"
    title = _("{op} is wrong").format(op=first.op)
    return Finding("bad", title, tuple(lines), first.site, where, workaround)
