"""The table of models: which one is right on which backend, as `models.csv` and docs have it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from deeplink_vendors.cuda.graph import backend as inductorgraph
from dicp.backend import GraphCompiler
from dicp.conformance.model_check import ModelResult
from tests.dicp.levels import REAL, SIMULATED

FILE = Path(__file__).with_name("models.csv")
BACKENDS: dict[str, GraphCompiler] = REAL | {inductorgraph.name: inductorgraph} | SIMULATED


def written(rows: Iterable[ModelResult]) -> str:
    out = io.StringIO()
    table = csv.DictWriter(out, [f.name for f in fields(ModelResult)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    return out.getvalue()


def kept() -> list[ModelResult]:
    """Read the last measured rows."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [ModelResult(**row) for row in csv.DictReader(file)]
