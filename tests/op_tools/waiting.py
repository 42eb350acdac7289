"""What a thread does in its own time is waited for, not slept for."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60  # of a loaded machine, after which it does not come


def until(happened: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> None:
    """Goes on (with something meanwhile, again and again, less and less often) until it has."""
    deadline, pause = time.monotonic() + SECONDS, 0.001
    while not happened():
        assert time.monotonic() < deadline, "it does not happen"
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)  # the others' turn
        pause = min(2 * pause, 0.25)  # who is slow is not to be left behind
