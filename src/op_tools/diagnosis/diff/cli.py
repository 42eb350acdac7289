# SPDX-License-Identifier: Apache-2.0
"""The command line and the output of `deeplink diff RUN_A RUN_B`."""

from __future__ import annotations

from collections.abc import Sequence

from deeplink.commands.common import STDOUT, write_json
from deeplink.console import console, table
from deeplink.i18n import _, joined
from op_tools.core.problem import Problem
from op_tools.diagnosis.diff import recordings
from op_tools.diagnosis.diff.driver import diff as difference
from op_tools.diagnosis.result_files import Diff

STATUS = {"same": 0, "rounding": 0, "diverges": 1}  # the others: 2
SHOWN = 20  # rows of each table
# Values of the result as messages.
STATUSES = {"right": _("right"), "wrong": _("wrong"), "not checked": _("not checked")}
HOWS = {
    "same": _("same"),
    "moved": _("moved"),
    "fused": _("fused"),
    "recomputed": _("recomputed"),
    "only a": _("only a"),
    "only b": _("only b"),
}


def diff(runs: Sequence[str], judge: int, json: str) -> int:
    """Run `deeplink diff`; returns the exit code."""
    a, b = (recordings.read(path) for path in runs)
    found = difference(a, b, judge)
    if json != STDOUT:
        show(found)
    write_json(found, json)
    if json != STDOUT:
        console().print(_("All results: {json}").format(json=json), soft_wrap=True)
    wrong = any(row["status"] == "wrong" for row in found["collectives"])
    status = max(STATUS.get(found["status"], 2), int(wrong))
    unread = found["a"]["problems"] or found["b"]["problems"]
    return 2 if unread and not status else status


def show(found: Diff) -> None:
    """Print the growth of the error, the pairs that differ, the collectives and the verdict."""
    out = console()
    for name in ("a", "b"):
        side = found["a"] if name == "a" else found["b"]
        device = " · ".join(side["devices"]) or _("the run does not name its device")
        out.print(f"{name.upper()}: {side['path']}: {device}", soft_wrap=True)
    cells: list[tuple[str, ...]]
    grown = [row for row in found["growth"] if row["error"] != 0][:SHOWN]
    if grown:
        cells = [
            (
                str(row["step"]),
                row["module"] or _("(no module)"),
                row["direction"],
                _number(row["error_in"]),
                _number(row["error"]),
                row["op"],
            )
            for row in grown
        ]
        columns = (
            _("step"),
            _("module"),
            _("direction"),
            _("error in"),
            _("largest error"),
            _("at"),
        )
        out.print(table(_("How the error grows: |A - B| / |A|"), columns, cells))
    apart = [row for row in found["pairs"] if row["status"] == "diverges"][:SHOWN]
    if apart:
        cells = [
            (row["op"], row["module"], row["site"], str(row["step"]), row["message"])
            for row in apart
        ]
        out.print(
            table(
                _("What diverges"),
                (_("operator"), _("module"), _("line"), _("step"), _("how")),
                cells,
            )
        )
    wrong = [row for row in found["collectives"] if row["status"] == "wrong"][:SHOWN]
    if wrong:
        cells = [
            (row["run"].upper(), f"{row['op']} #{row['number']}", str(row["step"]), row["message"])
            for row in wrong
        ]
        out.print(
            table(_("Wrong collectives"), (_("run"), _("collective"), _("step"), _("what")), cells)
        )
    _show_rest(found)


def _show_rest(found: Diff) -> None:
    out = console()
    for late in found["stragglers"][:3]:
        text = _("rank {rank} came {seconds:.0f} s late to {op}").format(
            rank=late["rank"], seconds=late["seconds"], op=late["op"]
        )
        out.print(_("{text}, step {step}").format(text=text, step=late["step"]), soft_wrap=True)
    for side in (found["a"], found["b"]):
        for problem in side["problems"][:3]:
            out.print(
                _("not read: {problem}").format(problem=problem), style="yellow", soft_wrap=True
            )
    statuses = [row["status"] for row in found["collectives"]]
    if statuses:
        counted = {word: statuses.count(word) for word in ("right", "wrong", "not checked")}
        words = joined(
            ", ", [f"{count} " + STATUSES[word] for word, count in counted.items() if count]
        )
        out.print(_("collectives, by arithmetic: {words}").format(words=words), soft_wrap=True)
    counts = joined(", ", [f"{count} " + HOWS[how] for how, count in found["counts"].items()])
    size = _("{bytes:.0f} MB compared in {seconds:.1f} s").format(
        bytes=found["bytes"] / 1000000.0, seconds=found["seconds"]
    )
    out.print(_("{counts}; {size}").format(counts=counts, size=size), soft_wrap=True)
    style = {"diverges": "bold red", "same": "green", "rounding": "green"}
    shown = "bold red" if "wrong" in statuses else style.get(found["status"], "bold yellow")
    if shown == "green" and (found["a"]["problems"] or found["b"]["problems"]):
        shown = "bold yellow"
    out.print(found["verdict"], style=shown, soft_wrap=True)
    first = found["first"]
    if first is not None:
        parts = first["site"], first["module"] and f"module {first['module']}", first["direction"]
        verdict = Problem(
            first["message"],
            ", ".join(filter(None, parts)),
            tuple(found["evidence"]),
            found["workaround"],
            found["next"],
        )
        for line in verdict.lines():
            out.print(line, soft_wrap=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
