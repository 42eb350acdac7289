# SPDX-License-Identifier: Apache-2.0
"""The commands about this installation: doctor, settings, flight-record."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.cells import cell_len

from deeplink import scaffold, settings
from deeplink.commands import common
from deeplink.console import console, table
from deeplink.errors import SettingError
from deeplink.i18n import _, joined, translated
from deeplink.inspection import collective_hang, operators
from deeplink.inspection import doctor as examination
from deeplink.inspection.doctor import Report
from deeplink.settings import InForce, Unknown
from deeplink.vendor import Found, choose

# States of vendors and of checks, as messages.
STATES = {
    "available": _("available"),
    "unavailable": _("unavailable"),
    "broken": _("broken"),
    "ok": _("ok"),
    "skipped": _("skipped"),
    "FAILED": _("FAILED"),
}


def doctor(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(help="With --ops: an operator, or a regular expression.")
    ] = "",
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Test the device (about 10 s).")
    ] = True,
    every: Annotated[
        bool, typer.Option("--all", help="Show all vendors, settings, checks and native parts.")
    ] = False,
    ops: Annotated[
        bool,
        typer.Option(
            "--ops",
            help="Instead: what runs each operator: vendor kernel, decomposition or CPU.",
        ),
    ] = False,
    json: common.Json = "",
    vendor: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Check this vendor, whichever would be chosen.",
            autocompletion=common.vendors,
        ),
    ] = "",
    quiet: common.Quiet = False,
) -> None:
    """Check the installation and test the device

    A vendor that is merely not available here is no failure.

    \b
    Examples:
      deeplink doctor
      deeplink doctor --vendor reference --no-self-test
      deeplink doctor --ops 'add|conv.*'

    \b
    Exit codes:
      0 all checks passed; 1 a check failed, a vendor is broken, or a setting is not allowed;
      2 the vendor cannot show its operators
    """
    with settings.selecting_vendor(vendor):  # an unknown name is one of the problems reported
        if ops:
            _show_operators(vendor, pattern, json)
        else:
            _examine(vendor, self_test, every, json, quiet)


def _examine(vendor: str, self_test: bool, every: bool, json: str, quiet: bool) -> None:
    report = examination.examine(vendor)
    if self_test and report.chosen is not None:
        if not quiet:
            text = _("testing {label} (about 10 s) …").format(label=report.chosen.vendor.label)
            console(stderr=True).print(text, style="dim", soft_wrap=True)
        examination.try_device(report, report.chosen.vendor)
    if json:
        common.write_json(examination.plain(report), json)
    if json != common.STDOUT:
        _show_verdict(report)
        if every:
            _show_all(report)
        else:
            _show_short(report)
    raise typer.Exit(1 if report.problems else 0)


def _show_verdict(report: Report) -> None:
    out = console()
    for problem in report.problems:
        out.print(_("FAILED  {problem}").format(problem=problem), style="bold red", soft_wrap=True)
    if not report.problems:
        tested = _("All checks passed") if report.checks else _("No problem; device not tested")
        chosen = report.chosen
        label = (
            _(": {label}, device {device!r}").format(
                label=chosen.vendor.label, device=chosen.vendor.device
            )
            if chosen
            else ""
        )
        out.print(
            _("{tested}{label}.").format(tested=tested, label=label), style="green", soft_wrap=True
        )


def _show_short(report: Report) -> None:
    """About 20 lines: the choice, versions, checks, vendors by state, and changed settings."""
    out = console()
    lines: list[tuple[str, str]] = []
    if report.chosen is not None:
        lines.append((_("vendor"), f"{report.chosen.vendor.name}: " + report.chosen.why))
    lines.append(
        (_("versions"), ", ".join(f"{name} {text}" for name, text in report.versions.items()))
    )
    if report.build:
        cached = ", ".join(f"{name} {state}" for name, state in list(report.build.items())[:3])
        lines.append((_("native parts"), cached))
    if report.checks:
        words = [
            f"{check.name} "
            + STATES[check.status]
            + (" (" + check.detail + ")") * (check.status == "FAILED")
            for check in report.checks
        ]
        total = sum(check.seconds for check in report.checks)
        lines.append((_("self-test"), joined(", ", words) + f"; {total:.1f} s"))
    for status in ("available", "unavailable", "broken"):
        rows = [row for row in report.vendors if row.status == status]
        if rows:
            lines.append((STATES[status], _names(rows)))
    changed = [row for row in report.settings if row.source != "default"]
    if changed:
        lines.append((_("settings"), ", ".join(f"{row.name}={row.value}" for row in changed)))
    names = [translated(name) for name, _text in lines]
    width = max(map(cell_len, names))
    for name, (_name, text) in zip(names, lines, strict=True):
        out.print(name + " " * (width + 2 - cell_len(name)) + text, soft_wrap=True)
    _show_unknown(report.unknown)
    out.print(_("Hint: `deeplink doctor --all` shows all details."), style="dim")


def _names(rows: list[Found]) -> str:
    if rows[0].status == "broken":
        return joined("; ", [f"{row.name}: " + row.reason for row in rows])
    return ", ".join(row.name for row in rows)


def _show_all(report: Report) -> None:
    out = console()
    out.print(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    out.print()
    rows = [(row.name, STATES[row.status], row.distribution, _about(row)) for row in report.vendors]
    out.print(table(_("Vendors"), (_("vendor"), _("status"), _("from"), _("note")), rows))
    if report.chosen is not None:
        chosen = report.chosen
        title = _("Chosen: {name}, device {device!r}").format(
            name=chosen.vendor.name, device=chosen.vendor.device
        )
        out.print(title + ", " + chosen.vendor.label, style="bold")
        out.print(_("because: {why}").format(why=chosen.why), soft_wrap=True)
        out.print()
    if report.checks:
        checks = [(c.name, STATES[c.status], f"{c.seconds:.2f} s", c.detail) for c in report.checks]
        total = sum(check.seconds for check in report.checks)
        checks.append((_("total"), "", f"{total:.2f} s", ""))
        out.print(table(_("Self-test"), (_("check"), _("status"), _("time"), _("detail")), checks))
    if report.build:
        out.print(table(_("Native build"), (_("what"), _("state")), list(report.build.items())))
    cells = [(row.name, row.source, row.value or _("(empty)")) for row in report.settings]
    out.print(table(_("Settings in force"), (_("name"), _("from"), _("value")), cells))
    _show_unknown(report.unknown)


def _about(row: Found) -> str:
    return row.reason or (row.vendor.note if row.vendor else "")


def _show_operators(vendor: str, pattern: str, json: str) -> None:
    chosen = choose(vendor or None).vendor
    with settings.selecting_vendor(chosen.name):  # torch_dipu serves the chip that is asked for
        rows = operators.rows_of(chosen, pattern)
    if json:
        common.write_json(operators.as_json(rows), json)
        return
    cells = [(row.overload.removeprefix("aten::"), row.by, row.who) for row in rows]
    title = _("The implementation of each operator of {label}").format(label=chosen.label)
    console().print(table(title, (_("overload"), _("by"), _("who")), cells))
    counts = ", ".join(f"{by} {count}" for by, count in operators.summary(rows))
    console().print(
        _("{count} {count:overload|overloads}: {counts}").format(
            count=len(rows), counts=counts or _("none match")
        )
    )


def show_settings(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="With the default and what is allowed.")] = (
        False
    ),
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that do not have their default.")
    ] = False,
    explain: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One setting: value, source, meaning, default, what is allowed.",
            autocompletion=lambda: [setting.name for setting in settings.table()],
        ),
    ] = "",
    json: common.Json = "",
) -> None:
    """Show the environment variables and their values

    \b
    Examples:
      deeplink settings --changed
      deeplink settings --explain DIPU_DEVICE_MEMORY
      DIPU_DEVICE_MEMORY=512MiB deeplink settings --all

    \b
    Exit codes:
      0 all values are allowed, 1 one is not, 2 no setting has this name
    """
    rows = settings.in_force()
    if explain:
        rows = [_named(explain, rows)]
    if changed:
        rows = [row for row in rows if row.source != "default"]
    unknown = [] if explain else settings.unknown()
    if json:
        found = {
            "settings": [asdict(row) for row in rows],
            "unknown": [asdict(row) for row in unknown],
        }
        common.write_json(found, json)
    if json != common.STDOUT:
        _show_settings(rows, every or bool(explain))
        _show_unknown(unknown)
    raise typer.Exit(1 if any(row.problem for row in rows) else 0)


def _named(name: str, rows: list[InForce]) -> InForce:
    found = next((row for row in rows if row.name == name.upper()), None)
    if found is None:
        near = difflib.get_close_matches(name.upper(), [row.name for row in rows], n=1)
        hint = (
            _("did you mean {name}?").format(name=near[0])
            if near
            else _("`deeplink settings` shows all of them.")
        )
        raise SettingError(_("no setting is named {name!r}.").format(name=name), hint)
    return found


def _show_settings(rows: list[InForce], every: bool) -> None:
    out = console()
    if not rows:
        out.print(_("all settings have their defaults"))
    elif every:
        for row in rows:
            out.print(
                _("{name} = {value}  ({source})").format(
                    name=row.name, value=row.value or _("(empty)"), source=row.source
                ),
                style="bold",
            )
            out.print("    " + row.doc)
            out.print(
                _("    default {default}; allowed: {allowed}").format(
                    default=row.default or _("(empty)"), allowed=row.allowed
                )
            )
    else:
        cells = [(row.name, row.value or _("(empty)"), row.source, row.doc) for row in rows]
        out.print(table(_("Settings"), (_("name"), _("value"), _("from"), _("meaning")), cells))
    for row in rows:
        if row.problem:
            out.print(row.problem, style="bold red", soft_wrap=True)


def _show_unknown(rows: list[Unknown]) -> None:
    for row in rows:
        console().print(settings.warning(row), style="yellow", soft_wrap=True)


def new_vendor(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The vendor, as acme.")],
    language: Annotated[
        Literal["python", "c"], typer.Option(help="The language of the runtime and the kernels.")
    ] = "python",
    output: Annotated[Path | None, common.output("Default: a new folder NAME.")] = None,
) -> None:
    """Write a package for a new chip that works at once

    The package has a runtime (memory, copies, streams, events) and kernels. It runs on the CPU
    until its bodies are replaced by calls of a driver.

    \b
    Examples:
      deeplink new-vendor acme
      deeplink new-vendor acme --language c -o vendors/acme

    \b
    Exit codes:
      0 the package was written, 2 it was not
    """
    folder = output or Path(name)
    commands = scaffold.create(name, language, folder)
    out = console()
    out.print(_("wrote {folder}; next:").format(folder=folder), soft_wrap=True)
    for command in commands:
        out.print(f"  {command}", soft_wrap=True)


def flight_record(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where the ranks wrote their records.")],
    last: Annotated[int, typer.Option(min=1, help="How many collectives of each rank.")] = 3,
    json: common.Json = "",
) -> None:
    """Find the rank that keeps the others waiting

    The last collectives of all ranks are read together. Each process writes its own record when a
    collective fails or hangs (DIPU_FLIGHT_RECORD_DIR).

    \b
    Examples:
      deeplink flight-record flight_record
      deeplink flight-record --last 10 flight_record

    \b
    Exit codes:
      0 no collective is pending, 1 one is, 2 there is no record
    """
    records = collective_hang.read(folder)
    found = collective_hang.diagnose(records)
    if json:
        common.write_json({"findings": found, "records": [asdict(r) for r in records]}, json)
    if json != common.STDOUT:
        rows = [
            (
                str(record.rank),
                entry["group"],
                collective_hang.name(entry),
                entry["state"],
                f"{record.time - entry['begun']:.1f} s",
                entry["where"],
            )
            for record in records
            for entry in record.entries[-last:]
        ]
        columns = (_("rank"), _("group"), _("name"), _("status"), _("since"), _("line"))
        console().print(table(_("The last collectives"), columns, rows))
        for line in found or [_("no collective is pending")]:
            console().print(line, soft_wrap=True)
    raise typer.Exit(1 if found else 0)
