# SPDX-License-Identifier: Apache-2.0
"""`python -m dicp`: run `deeplink compile-report`."""

from __future__ import annotations

import sys
from pathlib import Path

from deeplink import cli
from deeplink.commands.common import STDOUT, write_json
from deeplink.console import console, table
from dicp.backend import find, installed
from dicp.dynamo_bridge import report


def compile_report(file: Path | None, backends: str | None, json: str) -> int:
    """Show a report or the backends; return the exit code.

    `backends` is None for a report, "" for all backends, else the name of one to load.
    """
    if backends is not None:
        _show_backends(backends, json)
        return 0
    records = report.read(file)
    if json:
        write_json(report.plain(records), json)
    if json != STDOUT:
        report.show(records)
    return 0


def _show_backends(name: str, json: str) -> None:
    """List the dicp backends of torch.compile, and whether their compilers are installed."""
    if name:
        find(name)  # raises for an unknown name, with the nearest one
    rows = installed(name)
    if json:
        write_json([{"backend": row[0], "compiler": row[1]} for row in rows], json)
        return
    console().print(table("Backends of torch.compile", ("backend", "compiler"), rows))
    if any(text.startswith("not loaded") for _, text in rows):
        console().print("Hint: `deeplink compile-report --backends NAME` loads one and shows it.")


def main() -> int:
    """Run the command line."""
    return cli.status(["compile-report", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
