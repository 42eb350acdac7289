# SPDX-License-Identifier: Apache-2.0
"""Work that a tool does in a thread of its own: pieces in order, with a bound on those that are
pending, or one action again and again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from op_tools.core import dispatch, lifecycle

PERIOD = 0.5  # seconds between two writes of rows: on disk they are within a second
WAITING = 64  # pieces of work that wait at most; then the program waits


class Background:
    """Threads that do what they are given: one of them, until it grows, in order."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(waiting)
        self._closed = self._done = self._gone = False
        self._lock = threading.Lock()  # of the threads
        self._threads: list[threading.Thread] = []
        self.grow()
        lifecycle.begun(self, beneath=True)

    def grow(self) -> None:
        """Starts one more thread, until all is done after `close`."""
        with self._lock:
            if not self._done:
                thread = threading.Thread(target=self._work, name="op_tools", daemon=True)
                self._threads.append(thread)
                thread.start()

    def put(self, work: Callable[[], object]) -> None:
        """Queues a piece of work, which must not raise; waits while too many do."""
        if self._gone:
            return
        if self._closed:  # a backward pass after the end
            work()
        else:
            self._queue.put(work)

    def offer(self, work: Callable[[], object], seconds: float | None) -> bool:
        """Queues a piece of work as `put` does; False: too many were pending for so long."""
        if self._gone:
            return False
        if self._closed:  # a backward pass after the end
            work()
            return True
        try:
            self._queue.put(work, block=seconds != 0, timeout=seconds or None)
        except queue.Full:
            return False
        return True

    def pending(self) -> int:
        """Pieces of work that are not begun."""
        return self._queue.qsize()

    def close(self) -> None:
        """Waits until all is done."""
        self._closed = True
        if not self._gone:
            self._queue.join()
            with self._lock:
                self._done = True
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                thread.join()
        lifecycle.over(self)

    def forget(self) -> None:
        self._gone = True
        self._lock = threading.Lock()  # another thread may have had it

    def _work(self) -> None:
        with dispatch.unseen():
            for work in iter(self._queue.get, None):
                try:
                    work()
                finally:
                    self._queue.task_done()
            self._queue.task_done()


class Periodic:
    """Calls `write`, which must not raise, every PERIOD seconds and when it is woken, until it is
    closed.
    """

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write
        self._ended = False
        self._woken = threading.Event()
        self._gone = False
        self._thread = threading.Thread(target=self._work, name="op_tools_rows", daemon=True)
        self._thread.start()
        lifecycle.begun(self, beneath=True)

    def wake(self) -> None:
        """Write soon; the caller does not wait for it."""
        self._woken.set()

    def close(self) -> None:
        """Wait for a write that is going on; there is none after it."""
        self._ended = True
        self._woken.set()
        if not self._gone:
            self._thread.join()
        lifecycle.over(self)

    def forget(self) -> None:
        """In a forked child there is no such thread."""
        self._gone = True

    def _work(self) -> None:
        with dispatch.unseen():
            while not self._ended:
                if self._woken.wait(PERIOD):
                    self._woken.clear()
                if not self._ended:
                    self._write()
