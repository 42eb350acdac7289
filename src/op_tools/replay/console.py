# SPDX-License-Identifier: Apache-2.0
"""The tables and files of `run_op_from_data`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import torch

from deeplink.compare import Difference, worst
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.core import output_paths, terminal
from op_tools.replay import Prepared, Replayed, default_device
from op_tools.timing import console

ORDER = ("error", "FAILED", "not comparable", "ran", "ok")  # of the summary
BAD = ("error", "FAILED")


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    where: str
    name: str
    status: str  # one of ORDER
    message: str = ""
    device: str = ""
    bitwise: bool = False
    rows: tuple[Difference, ...] = ()
    forward: list[float] = field(default_factory=list)  # ms
    backward: list[float] = field(default_factory=list)
    first: int = 1  # the number of its first run
    shapes: tuple[str, ...] = ()  # of arguments, results, and the gradients of both

    @property
    def error(self) -> float:
        largest = worst(self.rows)
        return largest.max_abs if largest is not None else 0.0

    def as_dict(self) -> dict[str, Any]:
        times = {
            side: {"count": len(ms), "mean_ms": statistics.fmean(ms), "min_ms": min(ms)}
            for side, ms in (("forward", self.forward), ("backward", self.backward))
            if ms
        }
        items = [
            {"item": row.path, "close": row.close, "max_abs": row.max_abs, "message": row.message}
            for row in self.rows
        ]
        return {
            "where": self.where,
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "device": self.device,
            "bitwise": self.bitwise,
            "items": items,
            **times,
        }


# The classic tables.


def show_case(prepared: Prepared, replayed: Replayed) -> None:
    """Show the arguments, results and gradients of a call."""
    name = prepared.recorded.name
    rows = terminal.argument_rows(f"{name} inputs", prepared.args, prepared.kwargs)
    rows += terminal.tensor_rows(f"{name} outputs", replayed.result)
    if replayed.gradients is not None:
        rows += terminal.tensor_rows(f"{name} grad_inputs", tuple(replayed.gradients))
    terminal.write(terminal.call_table(rows))


def framework(device: str | None) -> str:
    """The package that drives a device of this name, or the chosen device, and its version."""
    kind = torch.device(device).type if device else default_device().type
    package = "torch" if kind in ("cpu", "cuda") else f"torch_{kind}"
    for distribution in (package, "deeplink"):  # torch_dipu is a part of deeplink
        with suppress(PackageNotFoundError):
            return f"{package}:{version(distribution)}"
    return package


def show_time(
    prepared: Prepared, side: Literal["forward", "backward"], number: int, result: Any, took: float
) -> None:
    """Show the time of one run in ms; with OP_TOOLS_VERBOSE also its tensors."""
    recorded, name = prepared.recorded, prepared.recorded.name
    times = console.grid(name, number, f"{side}_elasped", took)
    if not terminal.verbose():
        terminal.write(times + "\n\n")
    elif side == "forward":
        rows = terminal.argument_rows(f"{name} inputs", prepared.args, prepared.kwargs)
        rows += terminal.tensor_rows(f"{name} outputs", result)
        terminal.show_call("", str(recorded.header.get("site") or "(unknown line)"), rows, times)
    else:
        seeds = [g.to(prepared.device) for g in recorded.grad_outputs or [] if g is not None]
        rows = terminal.tensor_rows(f"{name} grad_outputs", (seeds,))
        rows += terminal.tensor_rows(f"{name} grad_inputs", ([g for g in result if g is not None],))
        terminal.write("\n".join([terminal.call_table(rows), times]))


def save_times(outcomes: Sequence[Outcome]) -> None:
    """Show the times of all runs in one table, and write them as OpTimeMeasure does."""
    rows = [row for outcome in outcomes for row in _time_rows(outcome)]
    if not rows:
        return
    columns = list(console.TIMES)
    shown = [row[: len(columns)] for row in rows]
    if all(outcome.backward == [] for outcome in outcomes):
        at = columns.index("backward_elasped")
        columns, shown = columns[:at] + columns[at + 1 :], [r[:at] + r[at + 1 :] for r in shown]
    terminal.write(terminal.grid(columns, shown))
    try:
        file = console.Csv(output_paths.folder("op_time_measure_result"))
    except DeeplinkError as error:  # the times are shown already
        terminal.write(str(error))
        return
    file.write("".join(map(console.line_of, rows)).encode())
    terminal.write(f"Timings written to {file.path}")


def _time_rows(outcome: Outcome) -> list[tuple[object, ...]]:
    pairs = enumerate(zip_longest(outcome.forward, outcome.backward), outcome.first)
    return [
        (
            *(outcome.name, number),
            *("-" if ms is None else f"{ms:.8f}" for ms in pair),
            *("ms", *outcome.shapes),
        )
        for number, pair in pairs
    ]


# The summary.


def summary(outcomes: Sequence[Outcome]) -> None:
    """Show the cases worst first, correct ones only where they were timed, and counts."""
    ordered = worst_first(outcomes)
    shown = [o for o in ordered if o.status != "ok" or o.forward][:50]
    if shown:
        rows = [(o.status, o.name, _times(o), o.message, o.where) for o in shown]
        columns = ("status", "name", "time", "message", "case")
        terminal.show_table("replayed (time: forward / backward)", columns, rows)
    counts = {status: sum(o.status == status for o in outcomes) for status in ORDER}
    text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    exact = sum(o.bitwise for o in outcomes)
    terminal.write(
        _("run_op_from_data: {count} {count:case|cases}: {text}; {exact} bit by bit").format(
            count=len(outcomes), text=text, exact=exact
        )
    )


def worst_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda o: (ORDER.index(o.status), -o.error))


def _times(outcome: Outcome) -> str:
    parts = [statistics.median(ms) for ms in (outcome.forward, outcome.backward) if ms]
    return " / ".join(f"{part:.3f} ms" for part in parts)


def write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a JUnit test suite: one test for each case."""
    bad = {status: str(sum(o.status == status for o in outcomes)) for status in BAD}
    suite = ElementTree.Element(
        "testsuite",
        name="run_op_from_data",
        tests=str(len(outcomes)),
        failures=bad["FAILED"],
        errors=bad["error"],
        skipped=str(sum(o.status == "not comparable" for o in outcomes)),
    )
    for outcome in outcomes:
        took = sum(outcome.forward + outcome.backward) / 1e3
        test = ElementTree.SubElement(
            suite, "testcase", classname=outcome.name, name=outcome.where, time=f"{took:.6f}"
        )
        kind = {"FAILED": "failure", "error": "error", "not comparable": "skipped"}
        if outcome.status in kind:
            ElementTree.SubElement(test, kind[outcome.status], message=outcome.message)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
