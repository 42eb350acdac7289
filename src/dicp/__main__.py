"""`python -m dicp`: the report of the last process that compiled, or of a file; the backends."""

import argparse
import sys
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.table import console, table
from dicp.backend import find, installed
from dicp.dynamo_bridge import report


def main() -> int:
    """The command; `deeplink compile-report` comes here."""
    parser = argparse.ArgumentParser(prog="deeplink compile-report", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a report; else the last one")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--backends", nargs="?", const="", metavar="NAME", help="what is installed; or of that name"
    )
    given = parser.parse_args()
    try:
        if given.backends is not None:
            _show_backends(given.backends)
            return 0
        records = report.read(given.file)
    except DeeplinkError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(report.as_json(records))
    else:
        report.show(records)
    return 0


def _show_backends(name: str) -> None:
    """Which names torch.compile knows of ours, and whether their compilers are there."""
    if name:
        find(name)  # says which name was meant
    rows = installed(name)
    console().print(table("Backends of torch.compile", ("backend", "compiler"), rows))
    if any(text.startswith("not loaded") for _, text in rows):
        console().print("Hint: `deeplink compile-report --backends NAME` loads one and shows it.")


if __name__ == "__main__":
    sys.exit(main())
