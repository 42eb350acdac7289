# SPDX-License-Identifier: Apache-2.0
"""A clean exit for programs that used gloo.

A worker thread of gloo holds the tensors of a collective slightly longer than the collective takes.
If it releases a tensor that Python knows while the interpreter shuts down, torch takes the GIL of
an interpreter that is gone, and the process aborts ("terminate called without an active
exception").
"""

from __future__ import annotations

import atexit
import threading
import time
from functools import cache
from pathlib import Path

PATIENCE = 0.5  # seconds; another thread of the program may never be idle


@cache
def end_cleanly() -> None:
    """Register an exit handler that waits until gloo's workers are idle."""
    atexit.register(wait_for_rest)


def wait_for_rest(patience: float = PATIENCE) -> bool:
    """Wait until all other threads are idle: asleep in two checks, with the GIL free in between.

    Return False when `patience` seconds pass first.
    """
    deadline = time.monotonic() + patience
    rested = 0
    while rested < 2 and time.monotonic() < deadline:
        rested = rested + 1 if all(map(_sleeps, _other_threads())) else 0
        time.sleep(0.001)
    return rested == 2


def _other_threads() -> list[Path]:
    """List the other threads of this process; empty where the system does not list threads.

    All threads are listed because gloo's workers have no names.
    """
    own = str(threading.get_native_id())
    return [task for task in Path("/proc/self/task").glob("*") if task.name != own]


def _sleeps(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # the thread has ended
        return True
    return state[0] != "R"
