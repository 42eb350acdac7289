# SPDX-License-Identifier: Apache-2.0
"""Compare two recorded runs: the first real divergence, and the growth of the error.

A call is not reported for an error of its arguments. It is reported if its results are wrong for
its own arguments, by the judge; without recorded tensors, if it computes different results from
equal arguments, by more than rounding explains.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from deeplink.i18n import _, joined
from op_tools.core import op_names
from op_tools.diagnosis import result_files
from op_tools.diagnosis.diff import collectives, explanation
from op_tools.diagnosis.diff.alignment import How, Match, align
from op_tools.diagnosis.diff.recheck import fault_of
from op_tools.diagnosis.diff.recordings import Entry, Recording, Value
from op_tools.diagnosis.diff.tensor_diff import Compared, compared, step_of
from op_tools.diagnosis.result_files import Diff, Growth, Pair, Side

PAIRS, GROWTHS = 1000, 2000  # rows that are kept
JUDGED = 300  # calls that are rerun, at most
STEPS = {True: 4.0, False: 64.0}  # of rounding: half types, other types
AMPLIFIED = 16.0  # of the error of the arguments, which an operator may amplify
NOT_COMPUTED = op_names.VIEWS | op_names.UNINITIALISED
UNEXPLAINED = _("the results differ by more than rounding explains, from the same arguments")


@dataclass
class Row:
    """A pair of calls that was compared."""

    rank: int
    match: Match
    a: Entry | None
    b: Entry | None
    error_in: float | None
    error: float | None
    exact_in: bool  # the arguments are bitwise equal
    status: str
    message: str = ""
    suspicious: bool = False

    @property
    def entry(self) -> Entry:
        found = self.a if self.a is not None else self.b
        assert found is not None  # one of them exists
        return found


class Known:
    """Comparisons by contents: a result is the argument of later calls."""

    def __init__(self) -> None:
        self.bytes = 0
        self._found: dict[tuple[object, ...], Compared | None] = {}

    def compared(self, one: Value, other: Value) -> Compared | None:
        if not (one.hash and other.hash):
            return self._counted(one, other)
        both = ((value.hash, value.shape, value.stride, value.dtype) for value in (one, other))
        key = tuple(both)
        if key not in self._found:
            self._found[key] = self._counted(one, other)
        return self._found[key]

    def _counted(self, one: Value, other: Value) -> Compared | None:
        found = compared(one, other)
        self.bytes += found.bytes if found is not None else 0
        return found


def diff(a: Recording, b: Recording, judged: int = JUDGED) -> Diff:
    """Compare two runs; the result is the content of diff.json."""
    begun = time.monotonic()
    known = Known()
    rows: list[Row] = []
    order: list[
        tuple[int, int, int]
    ] = []  # of all ranks together: the earliest divergence is the cause
    for rank, mine, theirs in _ranks(a, b):
        for number, match in enumerate(align(mine, theirs)):
            rows.append(_row(rank, match, mine, theirs, known))
            order.append((rows[-1].entry.step, number, rank))
    rows = [rows[at] for at in sorted(range(len(rows)), key=order.__getitem__)]
    first = _first(rows, judged)
    checked = [*collectives.check(a, "a"), *collectives.check(b, "b")]
    hows = Counter(row.match.how for row in rows)
    found: Diff = {
        "kind": "diff",
        "version": result_files.VERSION,
        "a": _side(a),
        "b": _side(b),
        "status": _status(rows, first),
        "verdict": "",
        "first": _pair(first) if first is not None else None,
        "evidence": [],
        "workaround": "",
        "next": "",
        "counts": {key: hows[key] for key in HOWS if hows[key]},
        "growth": _growth(rows)[:GROWTHS],
        "pairs": [_pair(row) for row in rows if row.status != "same"][:PAIRS],
        "collectives": checked[:200],
        "stragglers": collectives.stragglers(b) or collectives.stragglers(a),
        "seconds": 0.0,
        "bytes": known.bytes,
    }
    if first is not None and first.a is not None and first.b is not None:
        explanation.add(found, first, rows, a.path, b.path)
    found["verdict"] = _told(found, rows)
    found["seconds"] = round(time.monotonic() - begun, 3)
    return found


HOWS: tuple[How, ...] = ("same", "moved", "fused", "recomputed", "only a", "only b")
Status = Literal["same", "rounding", "diverges", "nothing in common"]


def _ranks(a: Recording, b: Recording) -> Iterator[tuple[int, list[Entry], list[Entry]]]:
    """Pair the ranks; a single rank is compared with every rank of the other run."""
    if len(a.ranks) == 1 or len(b.ranks) == 1:
        for rank in sorted(set(a.ranks) | set(b.ranks)):
            mine = a.ranks.get(rank) if len(a.ranks) > 1 else next(iter(a.ranks.values()))
            theirs = b.ranks.get(rank) if len(b.ranks) > 1 else next(iter(b.ranks.values()))
            if mine and theirs and (rank in a.ranks if len(a.ranks) > 1 else rank in b.ranks):
                yield rank, mine, theirs
        return
    for rank in sorted(set(a.ranks) & set(b.ranks)):
        yield rank, a.ranks[rank], b.ranks[rank]


def _row(
    rank: int, match: Match, mine: Sequence[Entry], theirs: Sequence[Entry], known: Known
) -> Row:
    a = mine[match.a] if match.a is not None else None
    b = theirs[match.b] if match.b is not None else None
    if a is None or b is None:
        return Row(rank, match, a, b, None, None, False, "unpaired")
    given, error_in = _worst(a.inputs, b.inputs, known)
    made, error = _worst(a.outputs, b.outputs, known)
    row = Row(rank, match, a, b, error_in, error, given, "same")
    if made or op_names.last(a.op) in op_names.UNINITIALISED:
        return row
    if op_names.is_random(a.op) and given:
        row.status, row.message = "random", _("random operator: not compared")
        return row
    row.status, row.suspicious = _kind(row, a)
    return row


def _kind(row: Row, a: Entry) -> tuple[str, bool]:
    """The kind of a pair by its errors alone, and whether to judge the call early."""
    step = max((step_of(value.dtype) for value in a.outputs), default=0.0)
    bound = STEPS[step > 2.0**-20] * step
    error = row.error
    if error is None or math.isnan(error):  # only hashes: the bits differ, the error is unknown
        return ("diverges" if row.exact_in else "propagated"), row.exact_in
    if row.exact_in:
        return ("rounding", False) if error <= bound else ("diverges", True)
    grown = error > max(bound, AMPLIFIED * (row.error_in or 0.0))
    return "propagated", grown


def _worst(a: Sequence[Value], b: Sequence[Value], known: Known) -> tuple[bool, float | None]:
    """Whether all values are equal, and the largest error; None: unknown."""
    if len(a) != len(b):
        return False, None
    same, worst = True, 0.0
    told = not a
    for one, other in zip(a, b, strict=True):
        found = known.compared(one, other)
        if found is None:
            same = False
            continue
        told = True
        same = same and found.same
        if not found.error <= worst:  # a nan, too
            worst = found.error
    return same, worst if told else None


def _first(rows: list[Row], judged: int) -> Row | None:
    """The first wrong call: suspicious calls are judged first, then the others."""
    left = judged
    for some in (
        [row for row in rows if row.suspicious],
        [row for row in rows if row.status in ("rounding", "propagated") and not row.suspicious],
    ):
        found: Row | None = None
        for row in some:
            if left <= 0 and row.status != "diverges":
                continue
            left -= 1
            if _is_wrong(row) and found is None:
                found = row
                break
        if found is not None:
            return found
    return None


def _is_wrong(row: Row) -> bool:
    assert row.a is not None and row.b is not None  # only pairs are judged
    mine, theirs = fault_of(row.a), fault_of(row.b)
    if mine is None and theirs is None:  # without tensors, or without a verdict
        if row.status == "diverges":
            row.message = UNEXPLAINED
        return row.status == "diverges"
    sides = [
        _("{side} is wrong: {text}").format(side=side, text=text)
        for side, text in (("A", mine), ("B", theirs))
        if text
    ]
    if not sides:
        row.status = "rounding" if row.exact_in else "propagated"
        return False
    row.status, row.message = "diverges", joined("; ", sides)
    return True


def _growth(rows: Sequence[Row]) -> list[Growth]:
    """The largest error of each module in each step, in the order of the run."""
    found: dict[tuple[int, str, str], Growth] = {}
    for row in rows:
        entry = row.entry
        key = entry.step, entry.module, entry.direction
        if row.error is None or row.status == "random" or op_names.last(entry.op) in NOT_COMPUTED:
            continue
        made = found.setdefault(
            key,
            Growth(
                step=key[0],
                module=key[1],
                direction=key[2],
                calls=0,
                error_in=row.error_in,
                error=0.0,
                op="",
            ),
        )
        made["calls"] += 1
        if not row.error <= cast("float", made["error"]):
            made["error"], made["op"] = row.error, entry.op
    return list(found.values())


def _side(run: Recording) -> Side:
    return Side(
        path=str(run.path),
        stores=run.stores,
        calls=run.calls,
        ranks=sorted(run.ranks),
        missing_ranks=run.missing,
        devices=run.devices,
        problems=run.problems,
    )


def _pair(row: Row) -> Pair:
    entry = row.entry
    other = row.b.op if row.b is not None and row.b.op != entry.op else ""
    return Pair(
        a=row.a.id if row.a is not None else None,
        b=row.b.id if row.b is not None else None,
        op=entry.op,
        op_b=other,
        module=entry.module,
        site=entry.site,
        step=entry.step,
        direction=entry.direction,
        rank=row.rank,
        how=row.match.how,
        error_in=row.error_in,
        error=row.error,
        status=row.status,
        message=row.message,
    )


def _status(rows: Sequence[Row], first: Row | None) -> Status:
    if first is not None:
        return "diverges"
    paired = [row for row in rows if row.a is not None and row.b is not None]
    if not paired:
        return "nothing in common"
    return "same" if all(row.status == "same" for row in paired) else "rounding"


def _longer(found: Diff) -> str:
    """The place where one of the runs continues alone."""
    only = {side: found["counts"].get(f"only {side}", 0) for side in ("a", "b")}
    side = max(only, key=lambda key: only[key])
    return (
        _(", as far as both go ({only} {only:call|calls} only in {side})").format(
            only=only[side], side=side.upper()
        )
        if only[side]
        else ""
    )


def _told(found: Diff, rows: Sequence[Row]) -> str:
    paired = sum(count for how, count in found["counts"].items() if how in HOWS[:3])
    total = _("{paired} {paired:pair|pairs} of {a} and {b} calls").format(
        paired=paired, a=found["a"]["calls"], b=found["b"]["calls"]
    )
    first = found["first"]
    missing = joined(
        "",
        [
            _(" Rank {names} of {side} is missing.").format(
                names=", ".join(map(str, found[side]["missing_ranks"])), side=side.upper()
            )
            for side in ("a", "b")
            if found[side]["missing_ranks"]
        ],
    )
    for side in ("a", "b"):
        if found[side]["problems"]:
            missing += _(" Not all of {side} was read: {problems}.").format(
                side=side.upper(), problems=found[side]["problems"][0]
            )
    wrong = [row for row in found["collectives"] if row["status"] == "wrong"]
    for row in wrong[:1]:
        missing += _(" {op} #{number} of run {side}: {message}.").format(
            op=row["op"], number=row["number"], side=row["run"].upper(), message=row["message"]
        )
    if found["status"] == "nothing in common":
        return _("The two runs have no call in common: {total}.{missing}").format(
            total=total, missing=missing
        )
    if first is None:
        drawn = sum(row.status == "random" for row in rows)
        text = _("The two runs are the same, bit for bit")
        if found["status"] == "rounding":
            text = _("The two runs differ by no more than rounding explains")
        random = (
            _("; {drawn} {drawn:call|calls} used other random numbers").format(drawn=drawn)
            if drawn
            else ""
        )
        longer = _longer(found)
        return _("{text}{longer}: {total}{random}.{missing}").format(
            text=text, longer=longer, total=total, random=random, missing=missing
        )
    where = joined(
        ", ",
        filter(
            None,
            (
                first["module"],
                first["site"],
                _("step {step}").format(step=first["step"]),
                first["direction"],
            ),
        ),
    )
    rank = _(" on rank {rank}").format(rank=first["rank"]) if len(found["b"]["ranks"]) > 1 else ""
    calls = _("call {a} of A and {b} of B").format(a=first["a"], b=first["b"])
    if first["a"] == first["b"]:
        calls = _("call {a} in both runs").format(a=first["a"])
    return _("First real divergence: {op}{rank} ({where}), {calls} ({total}).{missing}").format(
        op=first["op"], rank=rank, where=where, calls=calls, total=total, missing=missing
    )
