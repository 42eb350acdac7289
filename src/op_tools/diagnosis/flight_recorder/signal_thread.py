# SPDX-License-Identifier: Apache-2.0
"""Signals, told to another thread: the main one may never come to handle them.

Python calls a handler between two of its own instructions, and a program that hangs does so in C.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
from contextlib import suppress

_SENDER = struct.Struct("iII")  # what the system says of it: process, user, group


class Unheard:
    """One thread waits; made and closed by the main one."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # a forked child has the same until it has closed it
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._theirs.setblocking(False)
        before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        if before != -1:  # the program's own
            signal.set_wakeup_fd(before)

    def wait(self, seconds: float) -> int:
        """The number of a signal that has come; 0: none has."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return 0
        data, sender, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(_SENDER.size))
        for _, _, text in sender:
            if _SENDER.unpack(text)[0] != os.getpid():
                return 0
        return data[0]

    def wake(self) -> None:
        """Who waits goes on."""
        with suppress(BlockingIOError):  # there is something already
            self._theirs.send(b"\0")

    def close(self) -> None:
        """After it, nobody waits."""
        found = signal.set_wakeup_fd(-1)
        if found not in (-1, self._theirs.fileno()):
            signal.set_wakeup_fd(found)
        self._ours.close()
        self._theirs.close()


def end_by(number: int) -> None:
    """Ends the process by a signal, from any thread: only the main one may ask Python for that."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)
