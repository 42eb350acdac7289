# SPDX-License-Identifier: Apache-2.0
"""The checked-in facts of the interface: torch's schemas and the functions of the C headers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SCHEMAS = FOLDER / "schemas.csv"  # written by `python -m diopi.codegen --schemas`
LEGACY = FOLDER / "legacy.csv"  # written by hand


@dataclass(frozen=True)
class Overload:
    """One ATen overload: its functional overload and its form."""

    name: str
    of: str
    form: str  # "functional", "out" or "inplace"
    schema: str


@dataclass(frozen=True)
class Parameter:
    """One parameter of a C function, as its header declares it."""

    name: str
    c_type: str
    direction: str  # "in", "out", "inout", "alloc" (the callee allocates)
    optional: bool


@dataclass(frozen=True)
class Function:
    """A function of the published headers, and the op that it implements a form of."""

    name: str
    header: str
    op: str
    renames: tuple[tuple[str, str], ...]  # argument of the op -> parameter or literal
    parameters: tuple[Parameter, ...]

    @property
    def inplace(self) -> bool:
        return not any(p.direction in ("out", "alloc") for p in self.parameters)


@cache
def overloads() -> dict[str, Overload]:
    return {row["name"]: Overload(**row) for row in _rows(SCHEMAS)}


def forms(functional: str) -> tuple[str, ...]:
    """Return the overloads that are an `out=` or in-place form of a functional one."""
    return _forms().get(functional, ())


@cache
def _forms() -> dict[str, tuple[str, ...]]:
    grouped: dict[str, tuple[str, ...]] = {}
    for overload in overloads().values():
        if overload.form != "functional":
            grouped[overload.of] = (*grouped.get(overload.of, ()), overload.name)
    return grouped


@cache
def functions() -> dict[str, Function]:
    return {row["name"]: _function(row) for row in _rows(LEGACY)}


def legacy_names(op: str) -> tuple[str, ...]:
    """Return the published functions that are a form of an op."""
    return _legacy_names().get(op, ())


@cache
def _legacy_names() -> dict[str, tuple[str, ...]]:
    grouped: dict[str, tuple[str, ...]] = {}
    for function in functions().values():
        grouped[function.op] = (*grouped.get(function.op, ()), function.name)
    return grouped


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


_DIRECTIONS = {"!": "out", "&": "inout", "*": "alloc", "": "in"}
_PARAMETER = re.compile(r"(?P<direction>[!&*]?)(?P<name>\w+)(?P<optional>\??): (?P<type>.+)")


def _function(row: dict[str, str]) -> Function:
    parameters = []
    for text in filter(None, row["parameters"].split("; ")):
        match = _PARAMETER.fullmatch(text)
        assert match, (row["name"], text)  # the file is part of the package
        direction = _DIRECTIONS[match["direction"]]
        parameters.append(
            Parameter(match["name"], match["type"], direction, bool(match["optional"]))
        )
    renames = [part.split("=", 1) for part in row["renames"].split()]
    return Function(
        row["name"],
        row["header"],
        row["op"],
        tuple((name, source) for name, source in renames),
        tuple(parameters),
    )
