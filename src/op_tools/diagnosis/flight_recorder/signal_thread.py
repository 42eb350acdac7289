# SPDX-License-Identifier: Apache-2.0
"""Signals, passed to another thread, because the main thread may never handle them.

Python runs a handler between two of its instructions, and a hanging program is inside of C code.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
from contextlib import suppress

_SENDER = struct.Struct("iII")  # the system's description: process, user, group


class Unheard:
    """Signals for a thread that waits for them; made and closed by the main thread."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # a forked child shares it until it is closed
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._theirs.setblocking(False)
        before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        if before != -1:  # the program's own
            signal.set_wakeup_fd(before)

    def wait(self, seconds: float) -> int:
        """Wait for a signal; returns its number, 0: none."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return 0
        data, sender, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(_SENDER.size))
        for _, _, text in sender:
            if _SENDER.unpack(text)[0] != os.getpid():
                return 0
        return data[0]

    def wake(self) -> None:
        """End the waiting."""
        with suppress(BlockingIOError):  # full: the thread wakes anyway
            self._theirs.send(b"\0")

    def close(self) -> None:
        """End, with no thread waiting."""
        found = signal.set_wakeup_fd(-1)
        if found not in (-1, self._theirs.fileno()):
            signal.set_wakeup_fd(found)
        self._ours.close()
        self._theirs.close()


def end_by(number: int) -> None:
    """End the process by a signal, from any thread; only the main thread may set handlers."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)
