# SPDX-License-Identifier: Apache-2.0
"""`python -m diopi.codegen`: write the generated files; `--check` only reports stale files."""

from __future__ import annotations

import argparse
import sys

from diopi import catalogue
from diopi.codegen import files, schemas


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m diopi.codegen", description=__doc__)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="fail if a file is out of date")
    group.add_argument(
        "--schemas", action="store_true", help="read torch's schemas anew, after a new op or torch"
    )
    asked = parser.parse_args(arguments)
    if asked.schemas:
        catalogue.SCHEMAS.write_text(schemas.render(), "utf-8")
        print(f"wrote {catalogue.SCHEMAS.name}; now run python -m diopi.codegen")
        return 0
    if asked.check:
        stale = files.stale()
        for path in stale:
            print(f"out of date: {path.name}")
        print("Hint: run python -m diopi.codegen" if stale else "everything is up to date")
        return int(bool(stale))
    for path in files.write():
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
