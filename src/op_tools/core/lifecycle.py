# SPDX-License-Identifier: Apache-2.0
"""The end of the process and forks: what is open is closed, and a child leaves it alone.

A thread that needs the interpreter after its end aborts the process, so the threads of the tools
end before. A forked child has none of these threads, may inherit locked locks, and must not write
the files of its parent.
"""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from typing import Protocol


class Open(Protocol):
    """An object that has to be closed before the process ends."""

    def close(self) -> None:
        """Close it: the interpreter is about to end."""

    def after_fork(self) -> None:
        """Stop in a forked child, without waiting and without writing."""


_open: list[Open] = []
_last: list[Open] = []  # closed after those of `_open`, which use them


def register(each: Open, last: bool = False) -> None:
    """Close an object at the end of the process, before those that were registered earlier.

    `last`: after all objects without `last`: a thread works until its tool stops it.
    """
    (_last if last else _open).append(each)


def unregister(each: Open) -> None:
    """Leave out an object that is closed."""
    for group in (_open, _last):
        if each in group:
            group.remove(each)


def _close() -> None:
    with ExitStack() as stack:  # closes all of them, also after an error
        for each in (*_last, *_open):
            stack.callback(each.close)


def _after_fork() -> None:
    inherited = [*_last, *_open]
    _open.clear()
    _last.clear()
    for each in inherited:
        each.after_fork()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)
