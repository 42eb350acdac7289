# SPDX-License-Identifier: Apache-2.0
"""The command `deeplink`: its groups of commands. Help answers without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from deeplink import __version__
from deeplink.commands import (
    building,
    checks,
    common,
    demo,
    device,
    diagnosis,
    one_iter,
    run,
    serving,
)
from deeplink.commands.host import Host
from deeplink.run import runner

HELP = """Run PyTorch code written for CUDA on other accelerators

And find the operator, the module and the line that break it.

\b
Examples:
  deeplink run train.py            run a CUDA program on the device at hand
  deeplink diagnose train.py       the loss is wrong, a NaN, slow, hangs: find the cause
  deeplink doctor                  is the installation complete, does the device work

`deeplink COMMAND --help` shows the options, examples and exit codes of a command.
"""
RUN, DIAGNOSE, INSPECT, BRING_UP = "Run", "Diagnose", "Inspect", "Bring up a device"
# Each command: its group, its name and its function, or its own group of commands.
COMMANDS: tuple[tuple[str, str, Any], ...] = (
    (RUN, "run", run.run),
    (RUN, "serve", serving.serve),
    (RUN, "demo", demo.demo),
    (DIAGNOSE, "diagnose", diagnosis.diagnose),
    (DIAGNOSE, "bisect", diagnosis.bisect),
    (DIAGNOSE, "why-nan", diagnosis.why_nan),
    (DIAGNOSE, "determinism", diagnosis.determinism),
    (DIAGNOSE, "one-iter", one_iter.app),
    (DIAGNOSE, "diff", diagnosis.diff),
    (DIAGNOSE, "replay", checks.replay),
    (DIAGNOSE, "flight-record", device.flight_record),
    (INSPECT, "report", diagnosis.report),
    (INSPECT, "compile-report", serving.compile_report),
    (INSPECT, "coverage", checks.coverage),
    (INSPECT, "settings", device.show_settings),
    (BRING_UP, "doctor", device.doctor),
    (BRING_UP, "new-vendor", device.new_vendor),
    (BRING_UP, "build", building.build),
    (BRING_UP, "cache", building.cache),
    (BRING_UP, "conformance", checks.conformance),
    (BRING_UP, "pytorch-tests", checks.pytorch_tests),
)
# Options that a command does not know go to the program that it starts.
OPEN: dict[str, dict[str, Any]] = {
    "serve": {"allow_extra_args": True, "ignore_unknown_options": True},
    "coverage": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def application(only: Sequence[str] = ()) -> typer.Typer:
    """The commands, or some of them, as one application."""
    made = common.group(help=HELP)
    made.callback()(_root)
    for group, name, what in COMMANDS:
        if only and name not in only:
            continue
        if isinstance(what, typer.Typer):
            made.add_typer(what, name=name, rich_help_panel=group)
        else:
            settings = OPEN.get(name)
            made.command(
                name, cls=common.Command, rich_help_panel=group, context_settings=settings
            )(what)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deeplink {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app = application()


def status(
    line: Sequence[str], name: str = "deeplink", host: Host | None = None, only: Sequence[str] = ()
) -> int:
    """Run a command line, and return its exit code.

    `host` says where programs run, `only` which commands there are.
    """
    chosen = application(only) if only else app
    try:
        chosen(list(line), prog_name=name, obj=host or Host())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def parse(command: str, line: Sequence[str]) -> runner.Request:
    """What `deeplink run …` or `deeplink one-iter …` asks for; exits with 2 on a bad line."""
    from deeplink.commands.host import Recording

    host = Recording()
    code = status([command, *line], host=host)
    if host.request is None:
        sys.exit(code)
    return host.request


def main() -> None:
    """The console script."""
    sys.exit(status(sys.argv[1:]))
