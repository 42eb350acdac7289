# SPDX-License-Identifier: Apache-2.0
"""The two ends that nobody asks for: that of Python, and that of a forked child.

A thread that asks for the interpreter when it is gone ends the whole process, so each of ours ends
before. A child has none of them, may have their locks, and its parent's files are not its own.
"""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from typing import Protocol


class Ending(Protocol):
    """What is not over by itself."""

    def close(self) -> None:
        """Python is about to go."""

    def forget(self) -> None:
        """This is a forked child: waits for nobody, writes nothing, and is over."""


_open: list[Ending] = []
_beneath: list[Ending] = []  # what those work with


def begun(one: Ending, beneath: bool = False) -> None:
    """From now on it is to be ended, before what has begun earlier; beneath: and after all that is
    not, for a thread may go on until its tool tells it the end.
    """
    (_beneath if beneath else _open).append(one)


def over(one: Ending) -> None:
    """It has ended by itself."""
    for all_ in (_open, _beneath):
        if one in all_:
            all_.remove(one)


def _close() -> None:
    with ExitStack() as each:  # from the last one on, whatever one of them meets
        for one in (*_beneath, *_open):
            each.callback(one.close)


def _forget() -> None:
    left = [*_beneath, *_open]
    _open.clear()
    _beneath.clear()
    for one in left:
        one.forget()


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)
