# SPDX-License-Identifier: Apache-2.0
"""Child processes of a command. On Linux they end when the command ends, even when it is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1  # prctl option of Linux: the signal a process gets when its parent thread ends
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def start(line: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a child process that is sent SIGTERM when this process ends for any reason."""
    return subprocess.Popen(list(line), preexec_fn=bound(), **how)


def run(line: Sequence[str], **how: Any) -> int:
    """Run a child process and return its exit status.

    A Ctrl-C at a terminal reaches the child too, which gets time to print its last output.
    """
    child = start(line, **how)
    try:
        try:
            return child.wait()
        except KeyboardInterrupt:
            return child.wait(GRACE)
    except (
        KeyboardInterrupt,
        subprocess.TimeoutExpired,
    ):  # the grace period is over, or a second Ctrl-C arrived
        end(child)
        raise KeyboardInterrupt from None


def end(child: subprocess.Popen[bytes]) -> None:
    """Terminate a child, and kill it when it does not end within the grace period."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def bound() -> Callable[[], None] | None:
    """Return the function that the child calls before its program.

    All names are resolved before the fork, because the child must not import anything.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before prctl was called
            os._exit(128 + signal.SIGTERM)

    return bind
