# SPDX-License-Identifier: Apache-2.0
"""`python -m dlinfer.conformance --vendor acme`: which fused ops of a vendor are correct."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import torch

from deeplink import vendor as vendors
from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from dlinfer import kernels
from dlinfer.conformance.case import DTYPES, Case, cases
from dlinfer.conformance.check import wrong
from dlinfer.registry import OPS

TYPES = {str(d).removeprefix("torch."): d for d in (*DTYPES, torch.float16)}
DEFAULT = [name for name, dtype in TYPES.items() if dtype in DTYPES]


@dataclass
class Row:
    """An op in one type."""

    op: str
    dtype: str
    kernel: str  # the kernels that ran the cases, with counts if there are several
    cases: int = 0
    wrong: dict[str, str] = field(default_factory=dict)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0 if all are correct, 1 if one is wrong,
    2 if nothing could be run.
    """
    parser = argparse.ArgumentParser(prog="python -m dlinfer.conformance", description=__doc__)
    parser.add_argument("--vendor", default="", help="a vendor's name; else the one in force")
    parser.add_argument("--ops", nargs="*", default=["*"], metavar="OP", help="as paged_*")
    parser.add_argument("--dtypes", nargs="*", default=DEFAULT, choices=TYPES, metavar="DTYPE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="output as JSON, every case")
    given = parser.parse_args(arguments)
    names = [op for op in OPS if any(fnmatch(op, wanted) for wanted in given.ops)]
    if not names:
        parser.error(f"no op is called {', '.join(given.ops)}; there are: {', '.join(OPS)}")
    try:
        chosen = vendors.choose(given.vendor or None).vendor
        vendors.load_device(chosen)
    except DeeplinkError as error:
        print(error, file=sys.stderr)
        return 2
    rows = _tried(chosen.name, chosen.device, names, given.dtypes)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")
    _show(chosen.name, rows)
    return int(any(row.wrong for row in rows))


def _tried(vendor: str, device: str, ops: list[str], dtypes: list[str]) -> list[Row]:
    with kernels.using(vendor):
        routes = kernels.routes(device)
        rows = []
        for row in [Row(op, dtype, routes[op]) for op in ops for dtype in dtypes]:
            before = kernels.by_reference(row.op)
            for case in cases(row.op, TYPES[row.dtype]):
                row.cases += 1
                if what := _wrong(case, device):
                    row.wrong[case.label] = what
            row.kernel = _ran(row, kernels.by_reference(row.op) - before)
            rows.append(row)
    return rows


def _ran(row: Row, by_reference: int) -> str:
    """Name the kernels that ran the cases of a row,
    of which `by_reference` ran by the reference.
    """
    if not by_reference:
        return row.kernel
    own = row.cases - by_reference
    return f"{row.kernel} {own}, reference {by_reference}" if own > 0 else "reference"


def _wrong(case: Case, device: str) -> str:
    try:
        return wrong(case, device)
    except Exception as error:  # a vendor's kernel may raise anything; the other cases go on
        return f"{type(error).__name__}: {error}"


def _show(vendor: str, rows: list[Row]) -> None:
    out = console()
    lines = [
        (row.op, row.dtype, row.kernel, str(row.cases), str(len(row.wrong) or "ok")) for row in rows
    ]
    out.print(table(f"Fused ops of {vendor}", ("op", "dtype", "kernel", "cases", "wrong"), lines))
    for row in rows:
        for label, what in row.wrong.items():
            out.print(f"{row.op} {row.dtype} {label}: {what}")
    told = list(kernels.fallbacks())
    if told:
        out.print(f"{len(told)} kinds of calls ran by the reference; the first: {told[0].reason}")
    count, bad = sum(row.cases for row in rows), sum(len(row.wrong) for row in rows)
    out.print(f"{count} cases of {len({row.op for row in rows})} ops, {bad} wrong.")


if __name__ == "__main__":
    sys.exit(main())
