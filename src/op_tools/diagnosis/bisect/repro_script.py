# SPDX-License-Identifier: Apache-2.0
"""A script for each operator that a search has found, which reproduces one wrong call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from deeplink.run.loss_log import Loss
from op_tools.capture import read_folder
from op_tools.diagnosis.bisect.runner import Command, Runner, Until, comparing
from op_tools.diagnosis.result_files import Bisect, BisectRun
from op_tools.replay.allowed_functions import ReplayError
from op_tools.replay.export_script import export


def scripts(runner: Runner, folder: Path, found: Bisect, made: int) -> None:
    """Rerun the program, compare each call of the operators in `found` with the CPU, and write a
    script for one wrong call of each; none if all calls are correct.
    """
    if not isinstance(runner, Command):
        return
    ops = [guilty["op"] for guilty in found["guilty"]]
    number = made + 1
    place = folder / f"run-{number:02}"
    values = comparing(found["level"], "every", place)
    values |= {"OP_TOOLS_RUN": "autocompare", "OP_AUTOCOMPARE_LIST": ",".join(ops)}
    seen = runner.start(values, number, until=Until(_Kept(place, ops), "a wrong call of each"))
    found["runs"].append(
        BisectRun(
            number=number,
            purpose="capture",
            ops=ops,
            places=[],
            outcome="broken" if seen.problem else "failed",
            reason=seen.problem or "calls that are wrong are kept",
            losses=[],
            seconds=round(seen.seconds, 3),
            log=str(seen.log or ""),
        )
    )
    for guilty in found["guilty"]:
        for call in sorted(_calls(place, guilty["op"])):
            script = folder / f"repro_{guilty['op'].replace('.', '_')}.py"
            try:
                right = read_folder(call.parents[1] / "cpu")
                wrong = read_folder(call.parent)
                dtypes = replace(wrong, output=_as(right.output, wrong.output))
                export(dtypes, script, right=True)
            except (ReplayError, ValueError, OSError):  # not for a script; try the next
                continue
            guilty["script"], guilty["capture"] = str(script), str(call.parent)
            break


def _calls(place: Path, op: str) -> Iterator[Path]:
    return (place / "compared" / "op_capture_results" / op).rglob("device/input.pth")


class _Kept:
    """Whether a wrong call of each operator is on disk, also at the previous check, so that it is
    complete.
    """

    def __init__(self, place: Path, ops: Sequence[str]) -> None:
        self._place, self._ops, self._were = place, ops, False

    def __call__(self, losses: Sequence[Loss]) -> bool:
        are = all(any(_calls(self._place, op)) for op in self._ops)
        were, self._were = self._were, are
        return are and were


def _as(right: object, wrong: object) -> object:
    """Cast the correct values to the types of the wrong ones."""
    if isinstance(right, (list, tuple)) and isinstance(wrong, (list, tuple)):
        return [_as(a, b) for a, b in zip(right, wrong, strict=False)]
    to = getattr(right, "to", None)
    dtype = getattr(wrong, "dtype", None)
    return to(dtype) if to is not None and dtype is not None else right
