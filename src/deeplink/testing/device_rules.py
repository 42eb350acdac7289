# SPDX-License-Identifier: Apache-2.0
"""Rules for one device that every test suite follows: `[device]` of a vendor's gaps.toml.

[device]
dtypes = ["float32", "bfloat16"]   the types of the chip; no suite uses another

[[device.skip]]
op = "linalg.eig*"                 a pattern of whole names; `nn.functional.` is optional
dtype = "*"                        or one type
reason = "why"

[[device.tolerance]]               for suites that compare results with the CPU's
op = "tanh"
dtype = "float32"
bound = 2e-3                       relative, and absolute near zero
reason = "why"
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from deeplink.errors import DeeplinkError

SECTION = "device"
KEYS = ("dtypes", "skip", "tolerance")
FUNCTIONAL = "nn.functional."
Entry = TypeVar("Entry")


def _is_meant(pattern: str, op: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (op, op.removeprefix(FUNCTIONAL)))


@dataclass(frozen=True)
class Skip:
    """An op that the suites skip, with the reason."""

    op: str
    dtype: str
    reason: str


@dataclass(frozen=True)
class Tolerance:
    """A larger tolerance for an op's results, with the reason."""

    op: str
    dtype: str
    bound: float
    reason: str


@dataclass(frozen=True)
class Rules:
    """The rules of one device; empty without a file."""

    dtypes: tuple[str, ...] = ()
    skips: tuple[Skip, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()

    def skip_reason(self, op: str, dtype: str) -> str:
        """Return why an op is skipped in a dtype; "" when it is not skipped."""
        if self.dtypes and dtype not in self.dtypes:
            return f"the chip has no {dtype}"
        for skip in self.skips:
            if skip.dtype in ("*", dtype) and _is_meant(skip.op, op):
                return skip.reason
        return ""

    def bound(self, op: str, dtype: str) -> float | None:
        """Return the tolerance of an op in a dtype; None for the default of the suite."""
        found = [t.bound for t in self.tolerances if t.dtype == dtype and _is_meant(t.op, op)]
        return found[-1] if found else None


def read(path: Path | None) -> Rules:
    """Read the rules of a file; raise DeeplinkError for a misspelt key or a missing reason."""
    if path is None or not path.is_file():
        return Rules()
    found = section(path, SECTION, KEYS)
    return Rules(
        tuple(found.get("dtypes", ())),
        entries(Skip, found.get("skip", ()), path),
        entries(Tolerance, found.get("tolerance", ()), path),
    )


def section(path: Path, name: str, keys: Collection[str]) -> dict[str, Any]:
    """A section of a TOML file; a key that it should not have is an error."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text("utf-8")).get(name, {})
    except OSError as error:
        raise DeeplinkError(f"{path} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise DeeplinkError(f"{path} is no TOML: {error}.") from None
    if odd := sorted(set(found) - set(keys)):
        raise DeeplinkError(f"{path}: [{name}] has {', '.join(odd)}; known: {', '.join(keys)}.")
    return found


def entries(
    kind: Callable[..., Entry], rows: Iterable[dict[str, Any]], path: Path
) -> tuple[Entry, ...]:
    """The rows of a TOML file as records, each with all the fields of its kind and a reason."""
    return tuple(_entry(kind, row, path) for row in rows)


def _entry(kind: Callable[..., Entry], row: dict[str, Any], path: Path) -> Entry:
    names = [field.name for field in fields(cast(Any, kind))]
    if sorted(row) != sorted(names):
        raise DeeplinkError(f"{path}: {row} should have exactly {', '.join(names)}.")
    if not str(row["reason"]).strip():
        raise DeeplinkError(f"{path}: {row} needs a reason.")
    return kind(**row)
