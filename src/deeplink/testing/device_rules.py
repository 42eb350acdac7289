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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError

SECTION = "device"
KEYS = ("dtypes", "skip", "tolerance")
FUNCTIONAL = "nn.functional."


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

    def left_out(self, op: str, dtype: str) -> str:
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
    try:
        section = tomllib.loads(path.read_text("utf-8")).get(SECTION, {})
    except tomllib.TOMLDecodeError as error:
        raise DeeplinkError(f"{path} is no TOML: {error}.") from None
    if odd := sorted(set(section) - set(KEYS)):
        raise DeeplinkError(f"{path}: [{SECTION}] has {', '.join(odd)}; known: {', '.join(KEYS)}.")
    return Rules(
        tuple(section.get("dtypes", ())),
        tuple(_made(Skip, entry, path) for entry in section.get("skip", ())),
        tuple(_made(Tolerance, entry, path) for entry in section.get("tolerance", ())),
    )


def _made(kind: type[Any], entry: dict[str, Any], path: Path) -> Any:
    names = [field.name for field in fields(kind)]
    if sorted(entry) != sorted(names):
        raise DeeplinkError(f"{path}: {entry} should have exactly {', '.join(names)}.")
    if not str(entry["reason"]).strip():
        raise DeeplinkError(f"{path}: {entry} needs a reason.")
    return kind(**entry)
