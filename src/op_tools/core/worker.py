# SPDX-License-Identifier: Apache-2.0
"""Threads of the tools: a queue of work with a bound, and an action that is repeated."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from op_tools.core import dispatch, lifecycle

PERIOD = 0.5  # seconds between two writes of rows: on disk they are within a second
PENDING = 64  # pieces of work in the queue at most; then `put` blocks


class Background:
    """Threads that do pieces of work: one, in the order of the queue, until `grow` adds others."""

    def __init__(self, pending: int = PENDING) -> None:
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(pending)
        self._closed = self._done = self._gone = False
        self._lock = threading.Lock()  # of the threads
        self._threads: list[threading.Thread] = []
        self.grow()
        lifecycle.register(self, last=True)

    def grow(self) -> None:
        """Start one more thread, unless `close` has ended them."""
        with self._lock:
            if not self._done:
                thread = threading.Thread(target=self._work, name="op_tools", daemon=True)
                self._threads.append(thread)
                thread.start()

    def put(self, work: Callable[[], object]) -> None:
        """Queue a piece of work, which must not raise; blocks while the queue is full."""
        self.offer(work, None)

    def offer(self, work: Callable[[], object], seconds: float | None) -> bool:
        """Queue a piece of work as `put` does; False: the queue was full for `seconds`."""
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
        """The number of queued pieces of work."""
        return self._queue.qsize()

    def close(self) -> None:
        """Wait until all work is done, and end the threads."""
        self._closed = True
        if not self._gone:
            self._queue.join()
            with self._lock:
                self._done = True
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                thread.join()
        lifecycle.unregister(self)

    def after_fork(self) -> None:
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
    """A thread that calls `write`, which must not raise, every PERIOD seconds."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write
        self._ended = False
        self._woken = threading.Event()
        self._gone = False
        self._thread = threading.Thread(target=self._work, name="op_tools_rows", daemon=True)
        self._thread.start()
        lifecycle.register(self, last=True)

    def wake(self) -> None:
        """Let the thread write soon."""
        self._woken.set()

    def close(self) -> None:
        """Wait for a running `write`, and end the thread."""
        self._ended = True
        self._woken.set()
        if not self._gone:
            self._thread.join()
        lifecycle.unregister(self)

    def after_fork(self) -> None:
        self._gone = True

    def _work(self) -> None:
        with dispatch.unseen():
            while not self._ended:
                if self._woken.wait(PERIOD):
                    self._woken.clear()
                if not self._ended:
                    self._write()
