# SPDX-License-Identifier: Apache-2.0
"""A vendor's known gaps: `[[conformance]]` entries of its gaps.toml, compared with a run's results.

[[conformance]]
op = "conv_transpose2d"    an op of the interface
dtype = "bfloat16"         or "*"
check = "values"           the check that fails, several of them, or "*"
kind = "todo"              to be done here; "notyet": depends on others; "never": permanent
reason = "why"
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from deeplink.errors import DeeplinkError
from diopi.conformance.cases.case import Result

KINDS = ("todo", "notyet", "never")


@dataclass(frozen=True)
class Gap:
    """A known failure of an op in a dtype and check, with the reason."""

    op: str
    dtype: str
    check: str
    kind: str
    reason: str

    def covers(self, result: Result) -> bool:
        """Whether this gap explains every wrong finding of a result."""
        if self.op != result.op or self.dtype not in ("*", result.dtype):
            return False
        wrong = {finding.check for finding in result.findings if finding.grade == "F"}
        return self.check == "*" or wrong <= set(self.check.split())


def read(path: Path | None) -> list[Gap]:
    """Read the entries of a file; raise DeeplinkError for a misspelt key."""
    if path is None or not path.is_file():
        return []
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("conformance", [])
    except tomllib.TOMLDecodeError as error:
        raise DeeplinkError(f"{path} is no TOML: {error}.") from None
    return [_gap(entry, path) for entry in entries]


def _gap(entry: dict[str, str], path: Path) -> Gap:
    names = {field.name for field in fields(Gap)}
    if set(entry) != names:
        raise DeeplinkError(f"{path.name}: {entry} should have exactly {', '.join(sorted(names))}.")
    gap = Gap(**entry)
    if gap.kind not in KINDS or not gap.reason.strip():
        raise DeeplinkError(f"{path.name}: {gap} needs a kind of {KINDS} and a reason.")
    return gap


def find(gaps: Sequence[Gap], result: Result) -> Gap | None:
    """Return the entry that explains a failure."""
    return next((gap for gap in gaps if gap.covers(result)), None)


def complaints(
    gaps: Sequence[Gap], results: Sequence[Result], known: Collection[str], whole: bool
) -> list[str]:
    """Return the entries of unknown ops; after a whole run,
    also those that pass or match nothing.
    """
    found = [f"gaps.toml: no op {gap.op!r}" for gap in gaps if gap.op not in known]
    if not whole:
        return found
    ran = [result for result in results if result.status != "skipped"]
    for gap in gaps:
        mine = [r for r in ran if r.op == gap.op and gap.dtype in ("*", r.dtype)]
        shown = f"gaps.toml: {gap.op} {gap.dtype} {gap.check}"
        if gap.op in known and not mine:
            found.append(f"{shown}: an entry that matches no case")
        elif mine and not any(gap.covers(result) for result in mine if result.bad):
            found.append(f"{shown}: an entry whose cases pass")
    return found
