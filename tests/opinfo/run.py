"""Run torch's op_db on the device against the CPU: `python -m tests.opinfo.run --all`."""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deeplink import vendor
from deeplink.errors import DeeplinkError
from deeplink.testing import device_rules
from tests.opinfo.core import DTYPES, load_ops, select, supports
from tests.opinfo.gaps import REFERENCE, judge, read_gaps
from tests.opinfo.outcome import Outcome
from tests.opinfo.workers import Task, run_all

QUICK = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 when the run and the list of gaps disagree."""
    options = _parse(argv)
    console = Console()
    if options.vendor:
        os.environ["DEEPLINK_VENDOR"] = options.vendor  # the workers load this vendor's device
    if options.kernels:
        os.environ["DIPU_KERNELS"] = options.kernels  # for the workers, which bind at registration
    ops = load_ops()
    tasks = _tasks(ops, options)
    if not tasks:
        console.print(f"No op of op_db matches {options.ops!r} in {', '.join(options.dtypes)}.")
        return 2
    tasks = _wanted(tasks, device_rules.read(options.gaps), console)
    outcomes = _run(tasks, options.jobs, console)
    console.print(_summary(outcomes))
    _show_failures(outcomes, console)
    if options.csv:
        _write(outcomes, options.csv)
    complaints = judge(outcomes, read_gaps(options.gaps), ops)
    for complaint in complaints:
        console.print(complaint, style="red", markup=False, highlight=False, soft_wrap=True)
    verdict = f"{len(complaints)} disagreements with" if complaints else "agrees with"
    console.print(f"The run {verdict} {options.gaps.name}.", style="red" if complaints else "green")
    return 1 if complaints else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.opinfo.run",
        description="torch's op_db on the device against the CPU, forward and backward. "
        "Only samples that the CPU can run are counted.",
    )
    parser.add_argument("--all", action="store_true", help=f"every op, not {QUICK} spread ones")
    parser.add_argument(
        "--dtypes", type=_dtypes, default=list(DTYPES), help=f"of {','.join(DTYPES)} (default all)"
    )
    parser.add_argument("--ops", default="", help="only ops whose full name matches this regex")
    parser.add_argument(
        "--device", default="dipu", help="the device; cuda: through ditorch (default dipu)"
    )
    parser.add_argument(
        "--kernels",
        default="",
        help="run the device on the kernels of this module (deeplink_vendors.reference.kernels)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--csv", type=Path, help="write one line per op and dtype to this file")
    parser.add_argument("--vendor", default="", help="the vendor (default: DEEPLINK_VENDOR)")
    parser.add_argument("--gaps", type=Path, help="the rules and gaps (default: the vendor's)")
    options = parser.parse_args(argv)
    try:
        chosen = vendor.choose(options.vendor or None).vendor
    except DeeplinkError as error:
        parser.error(str(error))
    options.gaps = options.gaps or chosen.gaps_file() or REFERENCE
    return options


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"no dtype {name!r}; known: {', '.join(DTYPES)}")
    return names


def _tasks(ops: dict[str, Any], options: argparse.Namespace) -> list[Task]:
    tasks = []
    for dtype in options.dtypes:
        names = [name for name in ops if supports(ops[name], dtype)]
        if options.ops:
            names = [name for name in names if re.search(options.ops, name)]
        elif not options.all:
            names = select(names, QUICK)
        tasks += [Task(name, dtype, options.device) for name in sorted(names)]
    return tasks


def _wanted(tasks: Sequence[Task], rules: device_rules.Rules, console: Console) -> list[Task]:
    """Return the tasks that the device's rules do not skip, with tolerances;
    report skipped ones.
    """
    reasons = {task: rules.skip_reason(task.op, task.dtype) for task in tasks}
    for reason, count in Counter(filter(None, reasons.values())).items():
        console.print(f"{count} ops left out: {reason}", markup=False, highlight=False)
    kept = [task for task in tasks if not reasons[task]]
    return [replace(task, bound=rules.bound(task.op, task.dtype)) for task in kept]


def _run(tasks: Sequence[Task], jobs: int, console: Console) -> list[Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    outcomes = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("op_db", total=len(tasks))
        for outcome in run_all(tasks, jobs):
            outcomes.append(outcome)
            failing = sum(not row.passed for row in outcomes)
            name = f"{outcome.op} {outcome.dtype}"[:40]
            progress.update(bar, advance=1, description=f"{failing} failing  {name:40}")
            if not console.is_terminal and len(outcomes) % 100 == 0:
                console.print(f"{len(outcomes)}/{len(tasks)} ops, {failing} failing")
    return sorted(outcomes, key=lambda row: (list(DTYPES).index(row.dtype), row.op))


def _summary(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="op_db on the device against the CPU")
    for column in ("dtype", "ops", "passing", "forward", "backward", "samples", "seconds"):
        table.add_column(column, justify="left" if column == "dtype" else "right")
    for dtype in dict.fromkeys(row.dtype for row in outcomes):
        _add_line(table, dtype, [row for row in outcomes if row.dtype == dtype])
    _add_line(table, "all", outcomes)
    return table


def _add_line(table: Table, name: str, rows: Sequence[Outcome]) -> None:
    forward = [sum(row.forward[at] for row in rows) for at in (0, 1)]
    backward = [sum(row.backward[at] for row in rows) for at in (0, 1)]
    passed, total = forward[0] + backward[0], forward[1] + backward[1]
    table.add_row(
        name,
        str(len(rows)),
        str(sum(row.passed for row in rows)),
        f"{forward[0]}/{forward[1]}",
        f"{backward[0]}/{backward[1]}",
        f"{100 * passed / total:.2f} %" if total else "-",
        f"{sum(row.seconds for row in rows):.0f}",
    )


def _show_failures(outcomes: Sequence[Outcome], console: Console) -> None:
    for row in outcomes:
        for stage in ("forward", "backward"):
            failures = [failure for failure in row.failures if failure.stage == stage]
            if failures:
                passed, total = getattr(row, stage)
                text = f"{row.op} {row.dtype} {stage} {passed}/{total}: {failures[0].message}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)


def _write(outcomes: Sequence[Outcome], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["op", "dtype", "forward", "of", "backward", "of", "seconds", "first failure"]
        )
        for row in outcomes:
            first = row.failures[0].message if row.failures else ""
            counts = (*row.forward, *row.backward)
            writer.writerow([row.op, row.dtype, *counts, f"{row.seconds:.3f}", first])


if __name__ == "__main__":
    sys.exit(main())
