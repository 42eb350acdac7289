# SPDX-License-Identifier: Apache-2.0
"""Checks of the collectives of a run: is the result the sum (or maximum, …) of the inputs of all
ranks?

At the level `api` the record of a call that waits has the result. At the level `aten` it has not,
because the collective is asynchronous: the first call that reads the memory has it. Without such a
call, the result is searched among the arguments of later calls.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.core import op_names
from op_tools.core.collectives import kind_of
from op_tools.diagnosis.diff.recordings import Entry, Recording, Value
from op_tools.diagnosis.diff.tensor_diff import step_of
from op_tools.diagnosis.result_files import Collective

LATER = 200  # calls after a collective that are searched for its result
BEHIND = 2.0  # seconds: the times of calls have no fractions
_REDUCTION = re.compile(r"\b(SUM|AVG|MAX|MIN|PRODUCT)\b")
Group = tuple[int, ...]
NOT_READ = _(
    "its result is not in the record: the call did not wait, and no kernel that was "
    "recorded has read it; record with --level api where the program waits in Python"
)
OVERWRITING = frozenset("copy_ fill_ zero_".split())  # they do not read their argument
CHECKED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@dataclass(frozen=True)
class _Round:
    """One collective on all ranks: the calls, and their places on each rank."""

    op: str
    kind: str
    number: int
    calls: dict[int, tuple[int, Entry]]

    @property
    def first(self) -> Entry:
        return self.calls[min(self.calls)][1]


def check(run: Recording, side: str) -> list[Collective]:
    """Check every collective of a run; the wrong ones first."""
    found = [_checked(run, each, side) for each in rounds(run)] if len(run.ranks) > 1 else []
    return sorted(found, key=lambda row: ("wrong", "not checked", "right").index(row["status"]))


def rounds(run: Recording) -> list[_Round]:
    """Group the n-th call of a collective of each rank of a group."""
    by_key: dict[tuple[str, Group, int], dict[int, tuple[int, Entry]]] = defaultdict(dict)
    for rank, entries in run.ranks.items():
        counts: dict[tuple[str, Group], int] = defaultdict(int)
        for at, entry in enumerate(entries):
            if kind_of(entry.op) in CHECKED and len(entry.group) != 1:
                key = entry.op, entry.group
                by_key[*key, counts[key]][rank] = (at, entry)
                counts[key] += 1
    made = [_Round(op, kind_of(op), n, calls) for (op, _, n), calls in by_key.items()]
    return sorted(made, key=lambda each: (each.first.step, each.calls[min(each.calls)][0]))


def _checked(run: Recording, each: _Round, side: str) -> Collective:
    status, rank, message = _verdict(run, each)
    return Collective(
        run=side,
        op=each.op,
        number=each.number,
        step=each.first.step,
        ranks=sorted(each.calls),
        status=status,
        rank=rank,
        message=message,
    )


def _verdict(run: Recording, each: _Round) -> tuple[str, int | None, str]:
    group = each.first.group or (*run.ranks, *run.missing)
    absent = [rank for rank in run.ranks if rank in group and rank not in each.calls]
    if absent:
        few = _("they have made fewer, or it is another group's")
        return (
            "not checked",
            absent[0],
            _("rank {names} has no such call: {few}").format(
                names=", ".join(map(str, absent)), few=few
            ),
        )
    missing = [rank for rank in run.missing if rank in group]
    if missing:
        return (
            "not checked",
            None,
            _("rank {names} is missing").format(names=", ".join(map(str, missing))),
        )
    given = {rank: _given(each.kind, entry) for rank, (_, entry) in each.calls.items()}
    if any(value is None for value in given.values()):
        return "not checked", None, _("its tensors were not kept")
    inputs = [_flat(given[rank]) for rank in sorted(given)]
    if len({value.numel() for value in inputs}) > 1:
        return "wrong", None, _("the ranks gave tensors of different sizes")
    offs: dict[int, float] = {}
    for place, rank in enumerate(sorted(each.calls)):
        wanted = _wanted(each, inputs, place)
        off = _off(run, each, rank, wanted, inputs[place])
        if off is None:
            return "not checked", None, NOT_READ
        offs[rank] = off
    bound = _bound(each.first, len(offs))
    bad = [rank for rank, off in offs.items() if not off <= bound]
    if not bad:
        return (
            "right",
            None,
            _("{kind} of {count} {count:rank|ranks}").format(kind=each.kind, count=len(offs)),
        )
    worst = max(bad, key=lambda rank: offs[rank])
    text = _("rank {worst} got what is {offs:.3g} off what the ranks gave").format(
        worst=worst, offs=offs[worst]
    )
    return "wrong", worst, text


def _given(kind: str, entry: Entry) -> Value | None:
    """The input of a rank; calls with an argument for the result have it after that argument."""
    values = entry.inputs
    if not values or values[0].bytes is None:
        return None
    return values[0] if kind in ("all_reduce", "broadcast") else values[-1]


def _flat(value: Value | None) -> Tensor:
    tensor = value.tensor() if value is not None else None
    assert tensor is not None  # checked before
    return tensor.detach().reshape(-1).double()


def _wanted(each: _Round, inputs: list[Tensor], place: int) -> list[Tensor]:
    """The possible results of a rank; several if the record does not have the reduction."""
    if each.kind == "all_gather":
        return [torch.cat(inputs)]
    if each.kind == "broadcast":
        return inputs
    stacked = torch.stack(inputs)
    made = [REDUCTIONS[word](stacked) for word in _reductions(each.first)]
    if each.kind == "reduce_scatter":
        size = stacked.shape[1] // len(inputs)
        return [whole[place * size : (place + 1) * size] for whole in made]
    return made


REDUCTIONS: dict[str, Any] = {
    "SUM": lambda rows: rows.sum(0),
    "AVG": lambda rows: rows.mean(0),
    "MAX": lambda rows: rows.amax(0),
    "MIN": lambda rows: rows.amin(0),
    "PRODUCT": lambda rows: rows.prod(0),
}


def _reductions(entry: Entry) -> Sequence[str]:
    """The reduction of a call; all of them if its record does not have it."""
    if entry.load is None:
        return tuple(REDUCTIONS)
    recorded = entry.load()
    match = _REDUCTION.search(f"{recorded.args} {recorded.kwargs}")
    if match:
        return (match[1],)
    return ("SUM",) if entry.op.startswith("torch.") else tuple(REDUCTIONS)


def _off(
    run: Recording, each: _Round, rank: int, wanted: list[Tensor], own: Tensor
) -> float | None:
    """The distance of a rank's result from the nearest possible result; None: unknown."""
    at, entry = each.calls[rank]
    if entry.op.startswith("torch."):
        parts = [_flat(value) for value in entry.outputs if value.bytes is not None]
        if not parts:
            return None
        made = torch.cat(parts)
        if made.numel() != wanted[0].numel():
            return None
        return min(_distance(made, right) for right in wanted)
    read = _read(run.ranks[rank][at + 1 :], entry.id)
    if read is not None:
        part, offset = read
        rights = [right[offset : offset + part.numel()] for right in wanted]
        same = all(right.numel() == part.numel() for right in rights)
        return min(_distance(part, right) for right in rights) if same else None
    bound = _bound(entry, len(each.calls))
    for later in run.ranks[rank][at + 1 : at + 1 + LATER]:
        for value in later.inputs:
            if _count(value) == wanted[0].numel() and value.bytes is not None:
                off = min(_distance(_flat(value), right) for right in wanted)
                if off <= bound:
                    return off
    return None


def _read(later: list[Entry], collective: int) -> tuple[Tensor, int] | None:
    """The argument of the first call that reads a collective's result, and the first element of the
    result in it.
    """
    for entry in later:
        for call, place, offset in entry.awaited:
            if call == collective and place < len(entry.inputs):
                if place == 0 and op_names.last(entry.op) in OVERWRITING:
                    return None  # the memory may have the result, or new values of the program
                value = entry.inputs[place]
                return (_flat(value), offset) if value.bytes is not None else None
    return None


def _count(value: Value) -> int:
    return torch.Size(value.shape).numel()


def _distance(made: Tensor, right: Tensor) -> float:
    size = float(right.norm())
    off = float((made - right).norm())
    return off / size if size else (0.0 if off == 0 else float("inf"))


def _bound(entry: Entry, ranks: int) -> float:
    step = max((step_of(value.dtype) for value in entry.inputs), default=0.0)
    return 2.0 * ranks * step


# Late ranks.


def stragglers(run: Recording) -> list[dict[str, Any]]:
    """Ranks that arrive at collectives after the first rank, the latest first."""
    worst: dict[int, dict[str, Any]] = {}
    for each in rounds(run) if len(run.ranks) > 1 else ():
        times = {rank: _seconds(entry) for rank, (_, entry) in each.calls.items()}
        if len(times) < 2 or None in times.values():
            continue
        known = {rank: float(at) for rank, at in times.items() if at is not None}
        rank = max(known, key=lambda key: known[key])
        late = known[rank] - min(known.values())
        if late >= BEHIND and late > worst.get(rank, {"seconds": 0.0})["seconds"]:
            worst[rank] = {"rank": rank, "seconds": late, "op": each.op, "step": each.first.step}
    return sorted(worst.values(), key=lambda row: -row["seconds"])


def _seconds(entry: Entry) -> float | None:
    try:
        return time.mktime(time.strptime(entry.time, "%Y-%m-%d-%H-%M-%S"))
    except ValueError:
        return None
