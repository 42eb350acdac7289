"""How far each mapped overload is proved on the real compilers; measured into `real_levels.csv`.

python -m tests.dicp.real_levels onnxrtgraph openvinograph
"""

from __future__ import annotations

import csv
import sys
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from deeplink_vendors.cpu import onnxrt, openvino
from dicp.backend import Backend
from tests.dicp.op_check import Outcome, check
from tests.dicp.overloads import calls, core

FILE = Path(__file__).with_suffix(".csv")
BACKENDS = {backend.name: backend for backend in (onnxrt.backend, openvino.backend)}
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Level:
    """One overload on one compiler: the types in which all its calls were right, and for sizes
    that change; why some, or all, stay eager.
    """

    backend: str
    overload: str
    right: str
    dynamic: str
    eager: str


def measured(backend: Backend, overload: Any) -> Level:
    """The level of one overload."""
    name = str(overload).removeprefix("aten.")
    if overload not in backend.conversions:
        return Level(backend.name, name, "", "", "no conversion")
    found = {dtype: outcomes(backend, overload, dtype) for dtype in DTYPES}
    symbolic = outcomes(backend, overload, "float32", dynamic=True)
    right = [dtype for dtype, part in found.items() if _right(part)]
    reasons = sorted({o.text for part in found.values() for o in part if o.status == "eager"})
    return Level(
        backend.name, name, " ".join(right), "yes" if _right(symbolic) else "", "; ".join(reasons)
    )


def outcomes(
    backend: Backend, overload: Any, dtype: str, dynamic: bool = False, most: int = 4
) -> list[Outcome]:
    """What became of a few calls; an error is a wrong result."""
    found = []
    for call in calls(overload, dtype)[:most]:
        try:
            found.append(check(backend, call, dynamic))
        except Exception as error:  # a row of the table; the tests fail by it
            found.append(Outcome("wrong", f"{type(error).__name__}: {error}"))
    return found


def _right(part: list[Outcome]) -> bool:
    return {o.status for o in part} in ({"right"}, {"right", "eager"})


def kept() -> list[Level]:
    """What was measured last."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [Level(**row) for row in csv.DictReader(file)]


def main() -> None:
    """Measures the backends that are named, and keeps the rows of the others."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = sys.argv[1:]
    rows = [row for row in (kept() if FILE.exists() else []) if row.backend not in names]
    for name in names:
        rows += [measured(BACKENDS[name], overload) for overload in core()]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [f.name for f in fields(Level)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in sorted(rows, key=lambda r: (r.backend, r.overload)))


if __name__ == "__main__":
    main()
