"""`python -m dicp`: the report of the last process that compiled, or of a file."""

import argparse
import sys
from pathlib import Path

from deeplink.errors import DeeplinkError
from dicp.dynamo_bridge import report


def main() -> int:
    """The command; `deeplink compile-report` comes here."""
    parser = argparse.ArgumentParser(prog="deeplink compile-report", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a report; else the last one")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    try:
        records = report.read(given.file)
    except DeeplinkError as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(report.as_json(records))
    else:
        report.show(records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
