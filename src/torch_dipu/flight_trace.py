# SPDX-License-Identifier: Apache-2.0
"""The flight record in torch's own form, which `torchfrtrace` reads.

Its entries have the sizes, states and lines of ours. The name of an operation begins with "xccl",
because torchfrtrace accepts a fixed list of libraries and "xccl" is the neutral one of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

VERSION = "2.10"  # of the form, as torch 2.11 to 2.15 write it
PREFIX = "torch_flight_record_"  # of a file's name, before the rank
LIBRARY = "xccl"
STATES = {"done": "completed", "pending": "scheduled", "failed": "scheduled"}
# c10d's names of operations -> torchfrtrace's, where they differ by more than case
OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "RECVANYSOURCE": "recv",
}
_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]$")
_LINE = re.compile(r"(?P<filename>.+):(?P<line>\d+) (?P<name>.+)$")


def trace_of(record: dict[str, Any], descriptions: dict[str, str]) -> dict[str, Any]:
    """Convert the content of `rank-N.json`, with the description that torch has of each group."""
    groups: dict[str, list[int]] = record["groups"]
    described = {name: descriptions.get(name, "undefined") for name in groups}
    messages: Counter[tuple[str, int]] = Counter()
    entries = []
    for row in record["entries"]:
        peer = _peer_of(row)
        if peer is not None:
            messages[row["group"], peer] += 1
        number = 0 if peer is None else messages[row["group"], peer]
        entries.append(_entry(row, described.get(row["group"], "undefined"), number))
    configuration = {
        name: {"name": name, "desc": described[name], "ranks": str(ranks)}
        for name, ranks in groups.items()
    }
    return {
        "version": VERSION,
        "pg_config": configuration,
        "pg_status": {name: _status(name, record["entries"]) for name in groups},
        "entries": entries,
    }


def _peer_of(row: dict[str, Any]) -> int | None:
    """Return the other rank of a message; None for a collective."""
    return int(row["peer"]) if _operation(row) in ("send", "recv") else None


def _operation(row: dict[str, Any]) -> str:
    name: str = row["operation"]
    return OPERATIONS.get(name, name.lower())


def _profiling_name(row: dict[str, Any]) -> str:
    operation = _operation(row)
    arrow = {"send": "->", "recv": "<-"}.get(operation)
    ranks = "" if arrow is None else f" {row['rank']}{arrow}{row['peer']}"
    return f"{LIBRARY}:{operation}{ranks}"


def _entry(row: dict[str, Any], description: str, message: int) -> dict[str, Any]:
    inputs, outputs = _tensors(row["inputs"]), _tensors(row["outputs"])
    begun, ended = int(row["begun"] * 1e9), int(row["ended"] * 1e9)
    state = STATES[row["state"]]
    return {
        "record_id": row["number"] - 1,
        "pg_id": 0,
        "process_group": (row["group"], description),
        "collective_seq_id": row["sequence"],
        "p2p_seq_id": message,
        "op_id": row["number"],
        "profiling_name": _profiling_name(row),
        "time_created_ns": begun,
        "time_discovered_started_ns": begun,
        "time_discovered_completed_ns": ended if state == "completed" else None,
        **({"duration_ms": (ended - begun) / 1e6} if state == "completed" else {}),
        # a reduction in place has no separate output
        "input_sizes": [size for size, _ in inputs or outputs],
        "input_dtypes": [dtype for _, dtype in inputs or outputs],
        "output_sizes": [size for size, _ in outputs or inputs],
        "output_dtypes": [dtype for _, dtype in outputs or inputs],
        "state": state,
        "retired": row["state"] != "pending",
        "timeout_ms": 0,
        "is_p2p": message > 0,
        "frames": _frames(row["where"]),
    }


def _tensors(texts: Iterable[str]) -> list[tuple[list[int], str]]:
    """Return size and type of each tensor; a long list is cut short in the record."""
    found = (_TENSOR.match(text) for text in texts)
    return [
        ([int(size) for size in match[2].split(",") if size.strip()], match[1])
        for match in found
        if match
    ]


def _frames(where: str) -> list[dict[str, Any]]:
    match = _LINE.match(where)
    return [{**match.groupdict(), "line": int(match["line"])}] if match else []


def _status(group: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last collective of a group that was launched, and the last that was done."""
    own = [row for row in entries if row["group"] == group and row["sequence"]]
    done = [row["sequence"] for row in own if row["state"] == "done"]
    last = own[-1]["sequence"] if own else -1
    return {
        "last_enqueued_collective": last,
        "last_started_collective": last,
        "last_completed_collective": done[-1] if done else -1,
    }
