# SPDX-License-Identifier: Apache-2.0
"""The files of bisect, diff, determinism, one-iter and why-nan, as findings, charts and tables."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deeplink import identity
from deeplink.i18n import _, recognized
from deeplink.inspection import collective_hang
from op_tools.core.problem import program_in
from op_tools.diagnosis.report.model import Chart, Content, Finding, Row, Series, Table
from op_tools.diagnosis.report.readers.tools import made_on, run_record, trace

Found = dict[str, Any]


def any_json(file: Path, content: Content) -> None:
    """Read a file by its `kind`; other files are left out."""
    found = _parsed(file)
    if isinstance(found, list):
        trace(found, content)
    elif isinstance(found, dict) and "traceEvents" in found:
        trace(found["traceEvents"], content)
    elif isinstance(found, dict) and found.get("kind") in KINDS:
        KINDS[found["kind"]](found, content)
        content.sources.append((file.name, found["kind"]))
    elif isinstance(found, dict) and {"layers", "first"} <= set(found):
        one_iteration(found, content)
        content.sources.append((file.name, "one-iter"))


def _parsed(file: Path) -> Any:
    text = file.read_text("utf-8")
    try:
        return json.loads(text)
    except ValueError:
        if text.startswith("["):  # a truncated trace: up to its last complete event
            return json.loads(text[: text.rindex("}") + 1] + "]")
        raise


# The searches.


def bisect(found: Found, content: Content) -> None:
    guilty = found["guilty"]
    level: Any = "bad" if guilty else "good" if found["status"] == "nothing" else "warn"
    _made(found, content)
    lines: list[str] = [text for each in guilty for text in each.get("evidence", ())]
    plain = next((run for run in found["runs"] if run["purpose"] == "as it is"), None)
    if guilty and plain is not None and plain["reason"]:
        lines.append(_("as it is: {reason}").format(reason=plain["reason"]))
    places = [place for each in guilty for place in each["places"]]
    for place in places[1:6]:
        lines.append(
            _("also: {module}, {direction}, {site}").format(
                module=place["module"] or _("outside of modules"),
                direction=place["direction"],
                site=place["site"],
            )
        )
    site = next((place["site"] for place in places if place["site"]), "")
    where = f"module {places[0]['module']}, {places[0]['direction']}" if places else ""
    script = next((f"deeplink run {each['script']}" for each in guilty if each["script"]), "")
    workaround = found.get("fix", "")
    for each in guilty:
        content.explained[each["op"]] = len(content.findings)
    content.findings.append(
        Finding(
            *(level, recognized(found["verdict"]), tuple(lines), site, where),
            *(workaround, script),
        )
    )
    _loss_chart(found["runs"], content)
    rows = [
        (
            *(run["number"], run["purpose"], len(run["ops"]), run["outcome"], run["reason"]),
            *(f"{run['seconds']:.1f} s",),
        )
        for run in found["runs"]
    ]
    columns = ("run", "purpose", "operators on the CPU", "outcome", "reason", "time")
    content.tables.append(Table(_("Runs of the bisection"), columns, rows))


def _made(found: Found, content: Content) -> None:
    """Add how a search was made: its command, device, versions and duration."""
    made = dict(found.get("made") or {})
    made |= {"seconds": found.get("seconds")}
    for name in ("command", "date", "status"):  # those of its runs
        content.about.pop(name, None)
    command = shlex.join(found.get("command") or [])
    program = program_in(command) if ".py" in command or " -m " in command else command
    run_record({**made, "command": f"deeplink {found['kind']} {program}"}, content)


LOSSES = {
    "as it is": "on the device",
    "everything": "reference: every operator on the CPU",
    "search": "with the workaround",
}


def _loss_chart(runs: list[Found], content: Content) -> None:
    """The loss on the device, the reference loss, and the loss with the workaround."""
    series: dict[str, list[float | None]] = {}
    for run in runs:
        name = LOSSES.get(run["purpose"])
        if name is None or not run["losses"]:
            continue
        if run["purpose"] == "search" and run["outcome"] != "passed":
            continue
        series[name] = [math.nan if value is None else value for value in run["losses"]]
    if len(series) < 2:
        return
    count = max(map(len, series.values()))
    lines = [
        Series(name, [*values, *[None] * (count - len(values))]) for name, values in series.items()
    ]
    labels = [f"loss {number}" for number in range(count)]
    title = "Loss of the device and of the reference"
    axis = "losses, in the order of the program"
    content.charts.append(Chart("steps", title, axis, "loss", labels, lines))


def diff(found: Found, content: Content) -> None:
    content.unit = "relative error"
    level: Any = {"diverges": "bad", "nothing in common": "warn"}.get(found["status"], "good")
    first = found["first"] or {}
    for side in ("a", "b"):
        for device in found[side].get("devices", ()):
            content.made_on(f"{side.upper()}: {device}")
    lines = list(found.get("evidence") or filter(None, (first.get("message"),)))
    lines += [f"{side.upper()}: {found[side]['path']}" for side in ("a", "b")]
    lines += [text for side in ("a", "b") for text in found[side]["problems"]]
    where = ", ".join(filter(None, (first.get("module"), first.get("direction"))))
    workaround, following = found.get("workaround", ""), found.get("next", "")
    content.findings.append(
        Finding(
            *(level, recognized(found["verdict"]), tuple(lines), first.get("site", ""), where),
            *(workaround, following),
        )
    )
    growth = found["growth"]
    if growth:
        labels = [f"step {g['step']} {g['module'] or '-'} {g['direction']}" for g in growth]
        series = [
            Series("of the arguments", [g["error_in"] for g in growth]),
            Series("of the results", [g["error"] for g in growth]),
        ]
        title = _("How far the two runs drift apart")
        axis = "modules, in the order of the run"
        content.charts.append(Chart("growth", title, axis, "relative", labels, series, True))
    # errors of the arguments do not count
    states = {"diverges": "wrong", "same": "right", "rounding": "right"}
    for pair in found["pairs"]:
        row = Row(pair["op"], pair["direction"], pair["step"], pair["module"], pair["site"])
        state: Any = states.get(pair["status"], "unknown")
        row.state, row.part, row.rank = state, pair["how"], pair["rank"]
        row.note = f"{pair['status']}: {pair['message']}".rstrip(": ")
        row.error = -1.0 if pair["error"] is None else pair["error"]
        content.rows.append(row)
    if found["collectives"]:
        names = ("run", "op", "number", "step", "status", "rank", "message")
        rows = [tuple(each[name] for name in names) for each in found["collectives"]]
        content.tables.append(Table("Collectives", names, rows))


def determinism(found: Found, content: Content) -> None:
    level: Any = {"differs": "bad", "same": "good"}.get(found["status"], "warn")
    first = found["first"] or {}
    lines = [
        _(
            "{label} {dtype} {shape}: {differing} "
            "{differing:element differs|elements differ}, by {max_abs} at most"
        ).format(
            label=t["label"],
            dtype=t["dtype"],
            shape=t["shape"],
            differing=t["differing"],
            max_abs=t["max_abs"],
        )
        for t in found["tensors"]
    ]
    lines += [_("kept: {path}").format(path=path) for path in found["kept"]]
    _made(found, content)
    where = ", ".join(filter(None, (first.get("module"), first.get("direction"))))
    content.findings.append(
        Finding(*(level, recognized(found["verdict"]), tuple(lines), first.get("site", ""), where)),
    )


def one_iteration(found: Found, content: Content) -> None:
    """Read the layers of a comparison with a record: drift, and wrong layers."""
    layers = found["layers"]
    first = found["first"]
    for key, what in (("record", _("recorded on")), ("here", _("compared on"))):
        made = identity.read(found.get(key) or {})
        if made is not None:
            content.made_on(f"{what} {made}")
            if key == "here":
                content.add_about(made_on(made))
    if found.get("same_device"):
        title = _("The record is from the device under test: a fault of it is in the record too")
        content.findings.append(Finding("warn", title))
    if first is None:
        content.findings.append(Finding("good", _("Every layer is correct")))
    else:
        wanted = first["layer"], first["call"]
        layer = next(each for each in layers if (each["layer"], each["call"]) == wanted)
        lines = [
            f"{item['what']}: {item['message']}"
            for item in layer[first["direction"]]
            if not item["passed"]
        ]
        title = _("First diverging layer: {layer}, {direction}").format(
            layer=first["layer"], direction=first["direction"]
        )
        said = found.get("verdict") or {}
        lines = [*lines[:3], *said.get("evidence", ())]
        workaround, following = said.get("workaround", ""), said.get("next", "")
        site, name = layer["site"] or "", f"module {first['layer']} ({layer['name']})"
        content.findings.append(
            Finding("bad", title, tuple(lines), site, name, workaround, following)
        )
    labels = [f"{each['layer'] or each['name']}" for each in layers]
    series = [
        Series("results", [_number(each["drift"]) for each in layers]),
        Series("gradients", [_number(each["gradient_drift"]) for each in layers]),
    ]
    content.charts.append(
        Chart("growth", _("Drift from the record"), "layers", "relative", labels, series, True)
    )
    for each in layers:
        for word in ("forward", "backward"):
            for item in each[word]:
                row = Row(each["name"], word, module=each["layer"], site=each["site"] or "")
                row.part, row.note = item["what"], "" if item["passed"] else item["message"]
                row.state = "right" if item["passed"] else "wrong"
                row.error = _number(item["ratio"]) or 0.0
                content.rows.append(row)


def why_nan(found: Found, content: Content) -> None:
    """Read the origin of a NaN, and the calls before it."""
    origin = found["origin"]
    level: Any = "bad" if origin else "good"
    symptom = f"{found['symptom']}, step {found['step']}" if found["symptom"] else ""
    lines = tuple(map(recognized, filter(None, (symptom, *found["lines"]))))
    site = origin["site"] if origin else ""
    workaround, following = found.get("workaround", ""), found.get("next", "")
    content.findings.append(
        Finding(level, recognized(found["verdict"]), lines, site, "", workaround, following)
    )
    if not found["chain"]:
        return
    columns = ("", "op", "direction", "step", "module", "line", "largest value", "state")
    rows = [
        (
            *(place, each["op"], each["direction"], each["step"], each["module"], each["site"]),
            *(each["largest"], each["state"]),
        )
        for place, each in enumerate(found["chain"])
    ]
    content.tables.append(Table(_("From the symptom up to the origin"), columns, rows))


def collectives(file: Path, content: Content) -> None:
    """Read the collective logs of all ranks, once, with the first of them."""
    if any(what == "collectives" for _, what in content.sources):
        return
    found = collective_hang.read(file.parent)
    said = collective_hang.diagnose(found)
    for line in said:
        content.findings.append(Finding("bad", _("A collective does not end"), (line,)))
    rows = [
        (record.rank, e["group"], collective_hang.name(e), e["state"], e["where"])
        for record in found
        for e in record.entries[-20:]
    ]
    columns = ("rank", "group", "collective", "state", "line")
    content.tables.append(Table(_("The last collectives"), columns, rows))


KINDS: dict[str, Callable[[Found, Content], None]] = {
    "bisect": bisect,
    "diff": diff,
    "determinism": determinism,
    "why-nan": why_nan,
}


def _number(value: Any) -> float | None:
    """A number that JSON writes as a text: "inf", "nan"."""
    if value is None or value == "nan":
        return None
    found = float(value)
    return found if abs(found) < 1e300 else 1e300
