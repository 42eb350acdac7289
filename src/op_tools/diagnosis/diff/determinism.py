# SPDX-License-Identifier: Apache-2.0
"""`deeplink determinism`: two runs of a program, and the first operator with other bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deeplink.i18n import _, joined
from op_tools.capture import SUFFIX
from op_tools.core import op_names
from op_tools.diagnosis import result_files
from op_tools.diagnosis.bisect.health_checks import Seen
from op_tools.diagnosis.bisect.runner import Command
from op_tools.diagnosis.diff import recordings
from op_tools.diagnosis.diff.recordings import Entry, Recording, RecordingError
from op_tools.diagnosis.diff.tensor_diff import compared
from op_tools.diagnosis.result_files import BisectRun, Determinism, DeterminismTensor, Pair


@dataclass(frozen=True)
class First:
    """Two calls at the same place of two runs, with different results."""

    a: Entry
    b: Entry
    number: int  # among the calls of its rank
    nth: int  # among those of the same operator in the same step
    from_same: bool  # arguments


class Repetition:
    """Two runs that write a hash of each tensor, and two more that capture the call
    that differs.
    """

    def __init__(
        self,
        runner: Command,
        folder: Path,
        level: str = "aten",
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._runner, self._folder, self._level, self._tell = runner, folder, level, tell
        self._begun = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self.found: Determinism = {
            "kind": "determinism",
            "version": result_files.VERSION,
            "command": runner.line,
            "made": result_files.made(),
            "status": "broken",
            "verdict": "",
            "calls": 0,
            "differing": 0,
            "first": None,
            "tensors": [],
            "kept": [],
            "runs": [],
            "seconds": 0.0,
        }

    def run(self) -> Determinism:
        """Compare the runs; the result is in determinism.json, too."""
        runs = [
            self._recorded(_("hashes of run {which}").format(which=which), HASHES) for which in "AB"
        ]
        if all(runs):
            self._compare(cast("Recording", runs[0]), cast("Recording", runs[1]))
        self.found["seconds"] = round(time.monotonic() - self._begun, 3)
        result_files.write(self.found, self._folder / result_files.FILES["determinism"])
        return self.found

    def _compare(self, a: Recording, b: Recording) -> None:
        first, calls, differing = None, 0, 0
        for rank in sorted(set(a.ranks) & set(b.ranks)):
            found, count, others = differences(a.ranks[rank], b.ranks[rank])
            calls, differing = calls + count, differing + others
            if found is not None and (first is None or found.number < first.number):
                first = found
        self.found["calls"], self.found["differing"] = calls, differing
        problems = [*a.problems, *b.problems]
        if first is None and problems:
            text = _(
                "{calls} {calls:call|calls} of the two runs {calls:is|are} the same, bit "
                "for bit, but not all was read"
            ).format(calls=calls)
            self.found["verdict"] = _("{text}: {names}.").format(
                text=text, names=joined("; ", problems)
            )
            return
        if first is None:
            self.found["status"] = "same"
            self.found["verdict"] = _(
                "The two runs are the same, bit for bit: {calls} {calls:call|calls}."
            ).format(calls=calls)
            return
        self.found["status"] = "differs"
        self.found["first"] = _pair(first)
        self._keep(first)
        self.found["verdict"] = _told(first, differing, calls, bool(self.found["kept"]))

    def _keep(self, first: First) -> None:
        """Capture the call with its tensors, in two more runs."""
        more = {
            "OP_CAPTURE_FORMAT": "packed",
            "OP_CAPTURE_LIST": first.a.op,
            "OP_TOOLS_STEPS": str(first.a.step),
        }
        entries = []
        for which in "AB":
            kept = self._recorded(_("the call in run {which}").format(which=which), more)
            calls = kept.ranks.get(first.a.rank, []) if kept is not None else []
            if len(calls) > first.nth:
                entries.append(calls[first.nth])
                assert kept is not None
                file = _file_of(kept, first.a.rank)
                self.found["kept"].append(f"{file}#{entries[-1].id}")
        if len(entries) == 2:
            self.found["tensors"] = [
                _tensor(at, one, other)
                for at, (one, other) in enumerate(
                    zip(entries[0].outputs, entries[1].outputs, strict=False)
                )
            ]

    def _recorded(self, what: str, values: dict[str, str]) -> Recording | None:
        number = len(self.found["runs"]) + 1
        self._tell(_("run {number} of at most 4: {what}").format(number=number, what=what))
        place = self._folder / f"run-{number:02}"
        common = {
            "OP_TOOLS_RUN": "capture",
            "OP_TOOLS_LEVEL": self._level,
            "OP_TOOLS_RESULTS": str(place / "recorded"),
        }
        seen = self._runner.start({**common, **values}, number)
        self.found["runs"].append(_run(number, what, seen))
        if seen.problem and seen.exit >= 0:  # after a signal, the records so far are complete
            self.found["verdict"] = _("The program does not run: {problem}.{last_lines}").format(
                problem=seen.problem, last_lines=seen.last_lines
            )
            return None
        try:
            return recordings.read(place / "recorded")
        except RecordingError as error:
            status = seen.ended or _("it called none")
            text = _("No operator of a device was seen ({status}): {message}").format(
                status=status, message=error.message
            )
            self.found["verdict"] = text + (seen.last_lines if seen.ended else "")
            return None


def _file_of(kept: Recording, rank: int) -> Path:
    """The archive of a rank."""
    files = sorted(kept.path.rglob(f"*{SUFFIX}"))
    own = [file for file in files if f"-rank{rank}of" in file.name]
    return (own or files or [kept.path])[0]


HASHES = {"OP_CAPTURE_MODE": "hash"}


def differences(a: list[Entry], b: list[Entry]) -> tuple[First | None, int, int]:
    """The first pair of calls with different results, the number of pairs, and the number of
    different pairs.

    Pairs with equal arguments go first: in other pairs the difference is in the arguments.
    """
    early: First | None = None
    first: First | None = None
    count = differing = 0
    seen: dict[tuple[str, int], int] = {}
    for number, (one, other) in enumerate(zip(a, b, strict=False)):
        key = one.op, one.step
        nth = seen.get(key, 0)
        seen[key] = nth + 1
        count += 1
        if one.op != other.op:
            return first or early or First(one, other, number, nth, True), count, differing + 1
        if _hashes(one.outputs) == _hashes(other.outputs):
            continue
        if op_names.last(one.op) in op_names.UNINITIALISED:
            continue  # uninitialised memory
        differing += 1
        same = _hashes(one.inputs) == _hashes(other.inputs)
        found = First(one, other, number, nth, same)
        early = early or found
        if same and first is None:
            first = found
    if first is not None and early is not None and early.number < first.number:
        first = early  # a difference outside of the operators: in the data, in a copy
    return first or early, count, differing


def _hashes(values: Any) -> list[Any]:
    return [(value.hash, value.shape, value.dtype) for value in values]


def _pair(first: First) -> Pair:
    a, b = first.a, first.b
    return Pair(
        a=a.id,
        b=b.id,
        op=a.op,
        op_b="" if a.op == b.op else b.op,
        module=a.module,
        site=a.site,
        step=a.step,
        direction=a.direction,
        rank=a.rank,
        how="same",
        error_in=0.0 if first.from_same else None,
        error=None,
        status="diverges",
        message=_("other bits from the same arguments")
        if first.from_same
        else _("other arguments"),
    )


def _tensor(at: int, one: Any, other: Any) -> DeterminismTensor:
    found = compared(one, other)
    return DeterminismTensor(
        label=f"output[{at}]",
        dtype=one.dtype,
        shape=list(one.shape),
        hash=[one.hash, other.hash],
        differing=None if found is None else found.differing,
        max_abs=None if found is None else found.largest,
    )


def _run(number: int, what: str, seen: Seen) -> BisectRun:
    return BisectRun(
        number=number,
        purpose=what,
        ops=[],
        places=[],
        outcome="broken" if seen.problem else "passed",
        reason=seen.problem,
        losses=cast("list[float | None]", seen.values[-4:]),
        seconds=round(seen.seconds, 3),
        log=str(seen.log or ""),
    )


def _told(first: First, differing: int, calls: int, kept: bool) -> str:
    a = first.a
    where = joined(
        ", ", filter(None, (a.module, a.site, _("step {step}").format(step=a.step), a.direction))
    )
    rank = _(" of rank {rank}").format(rank=a.rank) if a.rank else ""
    if a.op != first.b.op:
        text = _("The programs part at call {number}{rank}: {op} and {op2} ({where})").format(
            number=first.number, rank=rank, op=a.op, op2=first.b.op, where=where
        )
    elif first.from_same:
        random = _(" It draws random numbers: set the seed.") if op_names.is_random(a.op) else ""
        text = _(
            "{op} is the first that gives other bits from the same arguments ({where}){rank}"
        ).format(op=a.op, where=where, rank=rank)
        text += random
    else:
        text = _(
            "{op} is the first that differs ({where}){rank}, and it was given other "
            "arguments: they come from outside of the operators that were seen, as data do"
        ).format(op=a.op, where=where, rank=rank)
    tail = "" if kept else _(" Neither was kept: the call did not come again.")
    return _(
        "{text}. {differing} of {calls} {calls:call|calls} {differing:differs|differ}.{tail}"
    ).format(text=text, differing=differing, calls=calls, tail=tail)
