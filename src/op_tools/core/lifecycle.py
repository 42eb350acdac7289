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

    def close(self) -> object:
        """Close it: the interpreter is about to end."""

    def after_fork(self) -> None:
        """Stop in a forked child, without waiting and without writing."""


_open: list[tuple[bool, Open]] = []  # whether to close it last, and the object


def register(each: Open, last: bool = False) -> None:
    """Close an object at the end of the process, before those that were registered earlier.

    `last`: after all objects without `last`: a thread works until its tool stops it.
    """
    _open.append((last, each))


def unregister(each: Open) -> None:
    """Leave out an object that is closed."""
    _open[:] = [entry for entry in _open if entry[1] is not each]


def _close() -> None:
    with ExitStack() as stack:  # closes all of them, also after an error; the last one first
        for _, each in sorted(_open, key=lambda entry: not entry[0]):
            stack.callback(each.close)


def _after_fork() -> None:
    inherited = _open.copy()
    _open.clear()
    for _, each in inherited:
        each.after_fork()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)
