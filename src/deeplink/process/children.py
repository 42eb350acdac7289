# SPDX-License-Identifier: Apache-2.0
"""Processes that a command starts: they end when it does, even when it is killed (on Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1  # of Linux: what a process is sent when the thread that made it ends
GRACE = 5.0  # seconds between asking a process to end and ending it


def start(line: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """subprocess.Popen of a child that is sent SIGTERM when this process ends, however it ends."""
    return subprocess.Popen(list(line), preexec_fn=bound(), **how)


def run(line: Sequence[str], **how: Any) -> int:
    """The status of a child. A Ctrl-C at a terminal reaches it too: it may say its last words."""
    child = start(line, **how)
    try:
        try:
            return child.wait()
        except KeyboardInterrupt:
            return child.wait(GRACE)
    except (
        KeyboardInterrupt,
        subprocess.TimeoutExpired,
    ):  # it has taken too long, or a second Ctrl-C
        end(child)
        raise KeyboardInterrupt from None


def end(child: subprocess.Popen[bytes]) -> None:
    """Asks a child to end, and ends it when it does not."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def bound() -> Callable[[], None] | None:
    """What the child calls before its program; all is looked up before the fork."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended in between
            os._exit(128 + signal.SIGTERM)

    return bind
