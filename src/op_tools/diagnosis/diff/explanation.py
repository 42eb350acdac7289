# SPDX-License-Identifier: Apache-2.0
"""The explanation of a divergence: what the wrong calls have in common, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deeplink.run.run_folder import RECORD
from op_tools.core.pattern import Evidence, describe
from op_tools.core.problem import program_in
from op_tools.diagnosis.diff.recheck import fault_of
from op_tools.diagnosis.diff.recordings import Entry
from op_tools.diagnosis.result_files import Diff

if TYPE_CHECKING:
    from op_tools.diagnosis.diff.driver import Row

CALLS = 64  # of the operator that are judged


def add(found: Diff, first: Row, rows: Sequence[Row], a: Path, b: Path) -> None:
    """Add the pattern of the wrong calls, the workaround and the next step to a result."""
    faulty = "A" if first.message.startswith("A is wrong") else "B"
    pattern = _pattern(first, rows, faulty)
    found["evidence"] = [pattern] if pattern else []
    program = program_in(_command(a if faulty == "A" else b))
    found["workaround"] = f"deeplink run --fallback {first.entry.op} {program}"
    found["next"] = f"deeplink bisect {program}"


def _pattern(first: Row, rows: Sequence[Row], faulty: str) -> str:
    """What the wrong calls of the operator have in common; "" if that is not known."""
    evidence = Evidence()
    mine = [row for row in rows if row.entry.op == first.entry.op and row.a and row.b]
    for row in mine[:CALLS]:
        entry = row.a if faulty == "A" else row.b
        assert entry is not None  # both calls exist
        wrong = row is first or _is_wrong(row, entry)
        if wrong is not None:
            evidence.add(describe(_tensors(entry), {}), not wrong)
    return evidence.pattern()


def _is_wrong(row: Row, entry: Entry) -> bool | None:
    """Whether a call is wrong; None if it cannot be judged."""
    if row.status == "same":
        return False
    fault = fault_of(entry)
    if fault is None:
        return row.status == "diverges" or None
    return bool(fault)


def _tensors(entry: Entry) -> tuple[torch.Tensor, ...]:
    """Tensors without values, of the types, shapes and strides of the arguments."""
    return tuple(
        torch.empty_strided(
            value.shape,
            value.stride or torch.empty(value.shape, device="meta").stride(),
            dtype=getattr(torch, value.dtype),
            device="meta",
        )
        for value in entry.inputs
    )


def _command(run: Path) -> str:
    """The command that made a recording; "" if the recording does not name it."""
    for folder in (run, *run.absolute().parents[:2]):
        try:
            return str(json.loads((folder / RECORD).read_text("utf-8"))["command"])
        except (OSError, ValueError, KeyError):
            continue
    return ""
