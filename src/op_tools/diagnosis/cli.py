# SPDX-License-Identifier: Apache-2.0
"""The work and the output of `deeplink bisect` and `deeplink determinism`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from deeplink.commands.common import STDOUT, write_json
from deeplink.console import console, table
from deeplink.i18n import _, joined
from deeplink.run.loss_log import PATTERN
from op_tools.core.call import Level
from op_tools.core.problem import Problem
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect import health_checks
from op_tools.diagnosis.bisect.driver import Asked, Bisection
from op_tools.diagnosis.bisect.runner import Command
from op_tools.diagnosis.diff.determinism import Repetition
from op_tools.diagnosis.result_files import Bisect, Determinism, Guilty

STATUS = {"nothing": 0, "same": 0, "found": 1, "differs": 1}  # the others: 2
SHOWN = 40  # operators and places


def bisect(
    line: list[str],
    output: Path,
    *,
    check: str,
    reference: Path | None,
    tolerance: float | None,
    loss_pattern: str,
    level: Level,
    instead: str,
    max_runs: int,
    resume: bool,
    fresh: bool,
    suspects: bool,
    places: bool,
    script: bool,
    timeout: float | None,
    json: str,
    quiet: bool,
) -> int:
    """Run `deeplink bisect`; returns the exit code."""
    folder = output.resolve()
    try:
        losses = health_checks.read_reference(reference, loss_pattern) if reference else None
        asked = Asked(
            health_checks.parse(check),
            losses,
            tolerance,
            instead,
            level,
            suspects,
            places,
            script,
            max_runs,
        )
        runner = Command(line, folder, loss_pattern, timeout, resume, fresh)
        with contextlib.closing(runner):
            found = Bisection(runner, folder, asked, tell=_silent if quiet else _say).run()
    except KeyboardInterrupt:
        return _stopped("bisect", folder)
    except OSError as error:
        return _failed(folder, error)
    if json:
        write_json(found, json)
    if json != STDOUT:
        show_bisect(found, folder)
    return STATUS.get(found["status"], 2)


def determinism(
    line: list[str],
    output: Path,
    *,
    level: Level,
    timeout: float | None,
    json: str,
    quiet: bool,
) -> int:
    """Run `deeplink determinism`; returns the exit code."""
    folder = output.resolve()
    try:
        runner = Command(line, folder, PATTERN, timeout)
        found = Repetition(runner, folder, level, _silent if quiet else _say).run()
    except KeyboardInterrupt:
        return _stopped("determinism", folder)
    except OSError as error:
        return _failed(folder, error)
    if json:
        write_json(found, json)
    if json != STDOUT:
        show_determinism(found, folder)
    return STATUS.get(found["status"], 2)


def _silent(line: str) -> None:
    """Drop a line of progress."""


def _say(line: str) -> None:
    console(stderr=True).print(line, style="dim", soft_wrap=True)


def _stopped(command: str, folder: Path) -> int:
    resume = _("Hint: deeplink bisect --resume … continues.") if command == "bisect" else ""
    text = _("Stopped. The results so far are in {folder}.").format(folder=folder)
    if resume:
        text = joined("\n", (text, resume))
    console(stderr=True).print(text, style="yellow", soft_wrap=True)
    return 130


def _failed(folder: Path, error: OSError) -> int:
    text = (
        _("{folder} cannot be written: {strerror}.").format(
            folder=folder, strerror=error.strerror or error
        )
        + _(" It holds the results so far.") * (folder / result_files.FILES["bisect"]).exists()
        + _("\nHint: -o DIR names another folder, which you may write, on a disk with free space.")
    )
    console(stderr=True).print(text, style="red", soft_wrap=True)
    return 2


# Output.


def show_bisect(found: Bisect, folder: Path) -> None:
    """Print the verdict and its evidence."""
    out = console()
    rows = [
        (
            str(run["number"]),
            run["purpose"],
            str(len(run["ops"]) or ""),
            run["outcome"],
            f"{run['seconds']:.1f} s",
            run["reason"],
        )
        for run in found["runs"]
    ]
    columns = (_("run"), _("what"), _("operators moved"), _("outcome"), _("time"), _("why"))
    out.print(table(_("The runs"), columns, rows))
    for guilty in found["guilty"]:
        cells = [
            (
                place["module"] or _("(no module)"),
                place["site"],
                place["direction"],
                str(place["calls"]),
            )
            for place in guilty["places"][:SHOWN]
        ]
        title = _("{op}: where ({calls} {calls:call|calls} in a run)").format(
            op=guilty["op"], calls=guilty["calls"]
        )
        out.print(table(title, (_("module"), _("line"), _("direction"), _("calls")), cells))
    style = {"found": "bold red", "nothing": "green"}.get(found["status"], "bold yellow")
    out.print(found["verdict"], style=style, soft_wrap=True)
    for guilty in found["guilty"]:
        for line in _explained(guilty, found).lines():
            out.print(line, soft_wrap=True, markup=False)
    out.print(
        _("All results: {folder}").format(folder=folder / result_files.FILES["bisect"]),
        soft_wrap=True,
    )


def _explained(guilty: Guilty, found: Bisect) -> Problem:
    """The details of one operator, below the verdict."""
    plain = next((run for run in found["runs"] if run["purpose"] == "as it is"), None)
    what = ""
    if plain is not None and plain["reason"]:
        what = _("as it is: {reason}").format(reason=plain["reason"])
    first = guilty["places"][0] if guilty["places"] else None
    where = ""
    if first is not None:
        parts = (
            first["site"],
            first["module"] and _("module {module}").format(module=first["module"]),
            first["direction"],
        )
        where = joined(", ", filter(None, parts))
    script = guilty["script"]
    reproduce = f"deeplink run {script}" if script else ""
    return Problem(what, where, tuple(guilty["evidence"]), found["fix"], reproduce)


def show_determinism(found: Determinism, folder: Path) -> None:
    """Print the first call that differs, and its two results."""
    out = console()
    cells = [
        (
            one["label"],
            f"{one['dtype']}{one['shape']}",
            " / ".join(one["hash"]),
            "" if one["differing"] is None else str(one["differing"]),
            "" if one["max_abs"] is None else f"{one['max_abs']:.3g}",
        )
        for one in found["tensors"]
    ]
    if cells:
        columns = (_("result"), _("type"), _("hashes"), _("differing"), _("largest difference"))
        out.print(table(_("The first that differs"), columns, cells))
    style = {"differs": "bold red", "same": "green"}.get(found["status"], "bold yellow")
    out.print(found["verdict"], style=style, soft_wrap=True)
    for kept in found["kept"]:
        out.print(_("kept: {kept}").format(kept=kept), soft_wrap=True)
    out.print(
        _("All results: {folder}").format(folder=folder / result_files.FILES["determinism"]),
        soft_wrap=True,
    )
