"""A vendor's known gaps: read from its gaps.toml, and held against what a run found."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from tests.opinfo.core import DTYPES
from tests.opinfo.outcome import Outcome

REFERENCE = Path(__file__).parents[2] / "src/deeplink_vendors/reference/gaps.toml"
STAGES = ("forward", "backward", "*")
KINDS = ("todo", "notyet", "never")


@dataclass(frozen=True)
class Gap:
    """A known failure of an op in a dtype and stage, with the reason."""

    op: str
    dtype: str
    stage: str
    kind: str
    reason: str
    since: str = ""  # with an older torch it is not judged: the op, or the gap, is not there

    def covers(self, op: str, dtype: str, stage: str) -> bool:
        return self.op == op and self.dtype in ("*", dtype) and self.stage in ("*", stage)


def read_gaps(path: Path = REFERENCE) -> list[Gap]:
    """The entries of `path`; a misspelt one is an error."""
    entries = tomllib.loads(path.read_text()).get("gap", [])
    return [_gap(entry, path) for entry in entries]


def find_gap(gaps: Sequence[Gap], op: str, dtype: str) -> Gap | None:
    """The first gap for this op in this dtype."""
    return next((gap for gap in gaps if gap.op == op and gap.dtype in ("*", dtype)), None)


def judge(outcomes: Sequence[Outcome], gaps: Sequence[Gap], known: Collection[str]) -> list[str]:
    """Return disagreements: failures without a gap, gaps that pass, gaps that match nothing."""
    complaints = []
    failing = {(row.op, row.dtype, fail.stage) for row in outcomes for fail in row.failures}
    for op, dtype, stage in sorted(failing):
        if not any(gap.covers(op, dtype, stage) for gap in gaps):
            complaints.append(f"{op} {dtype} {stage}: fails and is not in gaps.toml")
    ran = {(row.op, row.dtype) for row in outcomes}
    dtypes = {dtype for _, dtype in ran}
    for gap in gaps:
        wanted = set(DTYPES) if gap.dtype == "*" else {gap.dtype}
        if gap.since and torch.__version__ < gap.since:
            continue
        if gap.op not in known or not wanted <= set(DTYPES):
            complaints.append(f"{gap.op} {gap.dtype}: a gap that matches no op")
        elif wanted <= dtypes and any(op == gap.op for op, _ in ran):
            if not any((gap.op, dtype) in ran for dtype in wanted):
                complaints.append(f"{gap.op} {gap.dtype}: a gap that matches no op")
            elif not any(gap.covers(*failure) for failure in failing):
                complaints.append(f"{gap.op} {gap.dtype} {gap.stage}: a listed gap that passes")
    return complaints


def _gap(entry: dict[str, str], path: Path) -> Gap:
    names = {field.name for field in fields(Gap)} - {"since"}
    if set(entry) - {"since"} != names:
        raise ValueError(f"{path.name}: {entry} should have exactly {', '.join(sorted(names))}")
    gap = Gap(**entry)
    if gap.stage not in STAGES or gap.kind not in KINDS or not gap.reason.strip():
        raise ValueError(
            f"{path.name}: {gap} needs a stage of {STAGES}, a kind of {KINDS} and a reason"
        )
    return gap
