# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of a hanging collective from the flight records of all ranks: which rank is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

# one collective: group, sequence, operation, inputs, outputs, state, where, …
Entry = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The flight record of one rank: its last collectives, oldest first."""

    rank: int
    size: int
    time: float
    reason: str
    groups: dict[str, list[int]]
    entries: list[Entry]

    def last(self, group: str) -> Entry | None:
        """Return the last collective that the rank called in a group."""
        own = [e for e in self.entries if e["group"] == group and e["sequence"]]
        return own[-1] if own else None

    def at(self, group: str, sequence: int) -> Entry | None:
        same = (e for e in self.entries if e["group"] == group and e["sequence"] == sequence)
        return next(same, None)


def read(folder: Path) -> list[Record]:
    """Read the flight records of a folder, ordered by rank."""
    files = sorted(folder.glob("rank-*.json"))
    if not files:
        raise DeeplinkError(
            _("no flight record at {folder}: it has no rank-N.json.").format(folder=folder),
            _("each process writes one when a collective fails or hangs (DIPU_FLIGHT_RECORD_DIR)."),
        )
    return sorted(map(_record, files), key=lambda record: record.rank)


def _record(file: Path) -> Record:
    try:
        found = json.loads(file.read_text())
        return Record(
            *(found[key] for key in ("rank", "size", "time", "reason", "groups", "entries"))
        )
    except (ValueError, KeyError) as error:
        raise DeeplinkError(
            _("{file} is no flight record: {error!r}.").format(file=file, error=error)
        ) from None


def name(entry: Entry) -> str:
    """Format a collective for a message: `all_reduce #7 Float[4]`; unknown parts are left out."""
    sizes = ", ".join(entry["inputs"] or entry["outputs"])
    number = f" #{entry['sequence']}" if entry["sequence"] else ""
    return f"{entry['operation'].lower()}{number} {sizes}".rstrip()


def diagnose(records: Sequence[Record]) -> list[str]:
    """Explain why ranks are blocked, one line per finding; empty when no collective is pending."""
    found = [line for record in records for line in _one_to_one(record)]
    here = {record.rank: record for record in records}
    groups = {e["group"]: None for record in records for e in record.entries}
    for group in groups:
        found += _of_group(group, here)
    return found


def _of_group(group: str, here: dict[int, Record]) -> list[str]:
    ranks = next((r.groups[group] for r in here.values() if group in r.groups), sorted(here))
    last = {rank: here[rank].last(group) for rank in ranks if rank in here}
    front = max((e["sequence"] for e in last.values() if e is not None), default=0)
    waiting = {r: e for r, e in last.items() if e and e["sequence"] == front and _waits(e)}
    if not waiting:
        return []
    some = min(waiting)
    about = _("group {group}: {ranks} in {name}{at}").format(
        group=group, ranks=_ranks(waiting), name=name(waiting[some]), at=_at(waiting[some])
    )
    found = [
        _("{about}; rank {rank} is missing: {what_last}").format(
            about=about, rank=rank, what_last=_what_last(last[rank])
        )
        for rank in last
        if rank not in waiting and (last[rank] or {"sequence": 0})["sequence"] < front
    ]
    lost = [rank for rank in ranks if rank not in here]
    if lost:
        found.append(
            _("{about}; {ranks}: no record found (process exited, or not in a collective)").format(
                about=about, ranks=_ranks(lost)
            )
        )
    found += _others(group, here, front, waiting, about)
    return found or [
        _("{about}: all are there, so it is slow, or the connection is broken").format(about=about)
    ]


def _others(
    group: str, here: dict[int, Record], front: int, waiting: dict[int, Entry], about: str
) -> list[str]:
    """Report ranks that called another collective than the waiting ranks."""
    some = waiting[min(waiting)]
    found = []
    for rank, record in here.items():
        own = record.at(group, front)
        if own is None or (own["operation"] == some["operation"] and _same_sizes(own, some)):
            continue
        found.append(
            _("{about}; rank {rank} calls {name} instead{at}").format(
                about=about, rank=rank, name=name(own), at=_at(own)
            )
        )
    return found


def _same_sizes(one: Entry, other: Entry) -> bool:
    """Whether two collectives agree in sizes.
    Root and list operations differ legitimately by rank.
    """
    if not one["operation"].startswith(("ALLREDUCE", "BROADCAST", "REDUCE")):
        return True
    return bool(one["inputs"] == other["inputs"] and one["outputs"] == other["outputs"])


def _waits(entry: Entry) -> bool:
    return bool(entry["state"] != "done")


def _what_last(entry: Entry | None) -> str:
    if entry is None:
        return _("it has called no collective in this group")
    return _("its last is {name}, {state}{at}").format(
        name=name(entry), state=entry["state"], at=_at(entry)
    )


def _at(entry: Entry) -> str:
    """Format the source line of a collective; "" when it is unknown, as for DDP's buckets."""
    return f" ({entry['where']})" if entry["where"] else ""


def _ranks(ranks: Any) -> str:
    listed = sorted(ranks)
    word = "rank" if len(listed) == 1 else "ranks"
    return f"{word} {', '.join(map(str, listed))}"


def _one_to_one(record: Record) -> list[str]:
    verbs = {"SEND": _("to send to"), "RECV": _("to receive from")}
    return [
        _("rank {rank} waits {verbs} rank {peer} of group {group}: {names}{at}").format(
            rank=record.rank,
            verbs=verbs[e["operation"]],
            peer=e["peer"],
            group=e["group"],
            names=", ".join(e["inputs"] or e["outputs"]),
            at=_at(e),
        )
        for e in record.entries
        if e["operation"] in verbs and e["state"] == "pending"
    ]
