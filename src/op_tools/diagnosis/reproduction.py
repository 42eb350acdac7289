"""A script of its own for each operator that was found: one of its calls that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from op_tools.diagnosis.formats import Bisect, BisectRun
from op_tools.diagnosis.running import Command, Runner, comparing
from op_tools.export import export
from op_tools.folders import read
from op_tools.trusted import ReplayError


def scripts(runner: Runner, folder: Path, found: Bisect, made: int) -> None:
    """Runs the program once more, compares each call of the guilty operators with the CPU, and
    writes a script for one of each that is wrong; none where all of them are right.
    """
    if not isinstance(runner, Command):
        return
    ops = [guilty["op"] for guilty in found["guilty"]]
    number = made + 1
    place = folder / f"run-{number:02}"
    values = comparing(found["level"], "every", place)
    values |= {"OP_TOOLS_RUN": "autocompare", "OP_AUTOCOMPARE_LIST": ",".join(ops)}
    seen = runner.start(values, number)
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
        calls = (place / "compared" / "op_capture_results" / guilty["op"]).rglob("device/input.pth")
        for call in sorted(calls):
            script = folder / f"repro_{guilty['op'].replace('.', '_')}.py"
            try:
                right = read(call.parents[1] / "cpu")
                wrong = read(call.parent)
                dtypes = replace(wrong, output=_as(right.output, wrong.output))
                export(dtypes, script, right=True)
            except (ReplayError, ValueError, OSError):  # one that cannot be a script; the next may
                continue
            guilty["script"], guilty["capture"] = str(script), str(call.parent)
            break


def _as(right: object, wrong: object) -> object:
    """The right values in the types of the wrong ones."""
    if isinstance(right, (list, tuple)) and isinstance(wrong, (list, tuple)):
        return [_as(a, b) for a, b in zip(right, wrong, strict=False)]
    to = getattr(right, "to", None)
    dtype = getattr(wrong, "dtype", None)
    return to(dtype) if to is not None and dtype is not None else right
