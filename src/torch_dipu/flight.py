# SPDX-License-Identifier: Apache-2.0
"""The flight record: the last collectives of this process, for the diagnosis of a hang.

It is written to DIPU_FLIGHT_RECORD_DIR when a collective fails or times out, when one runs for
longer than DIPU_FLIGHT_RECORD_AFTER, and on demand. `deeplink flight-record DIR` reads the files of
all ranks together, and `torchfrtrace DIR` those in torch's own form.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import socket
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from deeplink import settings
from torch_dipu import _C, flight_trace

log = logging.getLogger("torch_dipu")
_watching = threading.Event()


def entries() -> list[dict[str, Any]]:
    """Return the last collectives, oldest first: group, sequence, sizes, state, line, times."""
    return list(_C.flight_record())


def dump(folder: str | Path | None = None, reason: str = "on demand") -> Path:
    """Write the record to `rank-N.json` in a folder; default: DIPU_FLIGHT_RECORD_DIR.

    The file `torch_flight_record_N` in the same folder has torch's own form.
    """
    place = Path(folder) if folder is not None else settings.DIPU_FLIGHT_RECORD_DIR.get()
    place.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank() if dist.is_initialized() else settings.rank()
    content = {
        "rank": rank,
        "size": dist.get_world_size() if dist.is_initialized() else settings.world(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
        "reason": reason,
        "groups": _groups(),
        "entries": entries(),
    }
    trace = flight_trace.trace_of(content, {g.group_name: g.group_desc for g in _known_groups()})
    _write(place / f"{flight_trace.PREFIX}{rank}", pickle.dumps(trace))
    file = place / f"rank-{rank}.json"
    _write(file, json.dumps(content, indent=1).encode())
    return file


def _write(file: Path, content: bytes) -> None:
    """Write a file at once: a reader never finds a part of it."""
    partial = file.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(file)


def _known_groups() -> list[dist.ProcessGroup]:
    return list(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else []


def _groups() -> dict[str, list[int]]:
    """Return the ranks of each group, by its name."""
    return {group.group_name: dist.get_process_group_ranks(group) for group in _known_groups()}


def start() -> None:
    """Start recording; called when the first process group is created."""
    if _watching.is_set():
        return
    _watching.set()
    _C.flight_capacity(settings.DIPU_FLIGHT_RECORD.get())
    _C.flight_on_failure(lambda: _log_file(dump(reason="a collective failed")))
    atexit.register(_C.flight_on_failure, None)
    after = settings.DIPU_FLIGHT_RECORD_AFTER.get()
    if after and settings.DIPU_FLIGHT_RECORD.get():
        ended = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(after, ended), name="flight_record", daemon=True
        )
        watcher.start()
        # exit handlers run in reverse order: this one runs after the next
        atexit.register(watcher.join, 5)
        atexit.register(ended.set)


def _watch(after: float, ended: threading.Event) -> None:
    told = 0
    while not ended.wait(min(after / 4, 5)):
        late = [
            entry["number"]
            for entry in entries()
            if entry["state"] == "pending" and time.time() - entry["begun"] > after
        ]
        if late and late[0] > told:
            told = late[0]
            _log_file(dump(reason=f"a collective is under way for more than {after:g} s"))


def _log_file(file: Path) -> None:
    log.warning(
        "the last collectives are in %s; read: deeplink flight-record %s", file, file.parent
    )
