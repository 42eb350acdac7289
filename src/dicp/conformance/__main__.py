# SPDX-License-Identifier: Apache-2.0
"""`python -m dicp.conformance --backend NAME`: which operators and models of a backend are correct.

Calls of every operator that the backend converts, and small models with random weights, are
compiled by it and judged against float64. Exit status: 0 when nothing is wrong and all named
operators and models are compiled, 1 otherwise, 2 when nothing could be run.

Examples:
  python -m dicp.conformance --backend acmegraph                      all, static and dynamic
  python -m dicp.conformance --backend acmegraph --ops _softmax 'aten.max*' --dynamic false
  python -m dicp.conformance --backend acmegraph --models llama resnet50 --dtypes bfloat16
  python -m dicp.conformance --backend acmegraph --cases static.ini --dynamic false

A file of cases is TOML (`ops = ["_softmax"]`, `models = ["llama"]`, `dtypes = ["float32"]`) or INI:
a section [cases] with these keys and names on lines of their own, or [pytest] with python_files:
test__softmax.py means the operator _softmax, test_llama.py the model llama.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from deeplink import vendor as vendors
from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from dicp.backend import GraphCompiler
from dicp.conformance import cases, command
from dicp.conformance.command import SIZES, Row
from dicp.conformance.model_check import DTYPES


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dicp.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", required=True, metavar="NAME", help="or package.module:name")
    parser.add_argument("--ops", nargs="*", metavar="OP", help="operators, and no models")
    parser.add_argument("--models", nargs="*", metavar="MODEL", help="models, and no operators")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="names from a TOML or INI file")
    parser.add_argument("--dynamic", choices=SIZES, default="all", help="whether sizes change")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, metavar="DTYPE", help="or float32")
    parser.add_argument(
        "--device", default="", help="the device of the tensors; default: the backend's"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every row as JSON")
    parser.add_argument("--all", action="store_true", help="show the correct rows, too")
    parser.add_argument("--list", action="store_true", help="list the names and run nothing")
    given = parser.parse_args(arguments)
    try:
        backend = command.backend_of(given.backend)
        if given.list:
            _list(backend)
            return 0
        backend.version()  # raises if the compiler is missing
        rows = _tried(backend, given)
    except DeeplinkError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        command.write(given.json, rows)
    command.show(backend, rows, given.all)
    if not any(row.status != command.NOT_TRIED for row in rows):
        return 2
    return int(any(row.failed for row in rows))


def _tried(backend: GraphCompiler, given: argparse.Namespace) -> list[Row]:
    read = cases.read(given.cases) if given.cases else cases.Cases()
    ops = [*(given.ops or ()), *read.ops]
    models = [*(given.models or ()), *read.models]
    asked = given.ops is not None or given.models is not None or given.cases is not None
    every_op = not asked or (given.ops is not None and not ops)
    every_model = not asked or (given.models is not None and not models)
    targets = cases.operators(backend) if every_op else cases.chosen_operators(backend, ops)
    names = list(cases.NAMES) if every_model else cases.chosen_models(models)
    dtypes = given.dtypes or read.dtypes or ("float32",)
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown:
        raise DeeplinkError(f"no dtype {unknown[0]!r}; allowed: {', '.join(DTYPES)}.")
    device = command.device_of(backend, given.device)
    if device.partition(":")[0] not in ("cpu", "cuda"):
        _bring(device.partition(":")[0])
    sizes = SIZES[given.dynamic]
    works = (*sizes, "training") if backend.training and "static" in sizes else sizes
    found: list[Row] = []
    if backend.whole is None:  # such a backend converts no operators
        found += command.tried_ops(backend, targets, dtypes, sizes, device, not every_op)
    found += command.tried_models(backend, names, dtypes, works, device, not every_model)
    return found


def _bring(device: str) -> None:
    """Import the module that registers a device with torch."""
    rows = [row.vendor for row in vendors.discover() if row.vendor and row.status == "available"]
    for vendor in rows:
        if vendor.device == device and vendor.device_module:
            importlib.import_module(vendor.device_module)
            return


def _list(backend: GraphCompiler) -> None:
    rows = [("op", str(target)) for target in cases.operators(backend)]
    rows += [("model", name) for name in cases.NAMES]
    console().print(table(f"What {backend.label} supports", ("kind", "name"), rows))


if __name__ == "__main__":
    sys.exit(main())
