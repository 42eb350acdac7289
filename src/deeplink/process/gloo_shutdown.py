# SPDX-License-Identifier: Apache-2.0
"""A clean end for a program that used gloo.

A worker thread of gloo keeps the tensors of a collective a little longer than the collective takes.
If it lets go of a tensor that Python knows while Python ends, torch takes the GIL of an interpreter
that is gone, and the process aborts ("terminate called without an active exception").
"""

from __future__ import annotations

import atexit
import threading
import time
from functools import cache
from pathlib import Path

PATIENCE = 0.5  # seconds: some other thread of the program may never rest


@cache
def end_cleanly() -> None:
    """From now on the end of the program waits until gloo's workers are at rest."""
    atexit.register(wait_for_rest)


def wait_for_rest(patience: float = PATIENCE) -> bool:
    """Whether all other threads came to rest: seen asleep twice, with the GIL free in between."""
    deadline = time.monotonic() + patience
    rested = 0
    while rested < 2 and time.monotonic() < deadline:
        rested = rested + 1 if all(map(_sleeps, _other_threads())) else 0
        time.sleep(0.001)
    return rested == 2


def _other_threads() -> list[Path]:
    """gloo's workers have no names; where the system does not list threads, there are none."""
    own = str(threading.get_native_id())
    return [task for task in Path("/proc/self/task").glob("*") if task.name != own]


def _sleeps(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return True
    return state[0] != "R"
