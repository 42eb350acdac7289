# SPDX-License-Identifier: Apache-2.0
"""Threads of the tools: a queue of work with a bound, and an action that is repeated."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from deeplink.console import console
from deeplink.i18n import _
from op_tools.core import dispatch, lifecycle

PERIOD = 0.5  # seconds between two writes of rows: on disk they are within a second
PENDING = 64  # pieces of work in the queue at most; then `put` blocks
NOTICE = 10.0  # seconds after which the end reports what it waits for
PATIENCE = 600.0  # seconds without one finished piece of work after which the end waits no longer


class Background:
    """Threads that do pieces of work: one, in the order of the queue, until `grow` adds others."""

    def __init__(self, what: str, pending: int = PENDING) -> None:
        """`what` the work makes, for messages: verdicts, captured tensors."""
        self._what = what
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(pending)
        self._closed = self._done = self._gone = False
        self._unfinished = self._finished = 0  # pieces of work
        self._progress = threading.Condition()  # of these numbers
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
        with self._progress:
            self._unfinished += 1
        try:
            self._queue.put(work, block=seconds != 0, timeout=seconds or None)
        except queue.Full:
            with self._progress:
                self._unfinished -= 1
            return False
        return True

    def pending(self) -> int:
        """The number of queued pieces of work."""
        return self._queue.qsize()

    def close(self) -> bool:
        """Wait until all work is done, and end the threads.

        False: no piece of work was finished for PATIENCE seconds. The pending ones are dropped, and
        reported, and the threads are left alone: they do not keep the process.
        """
        self._closed = True
        is_finished = True
        if not self._gone:
            is_finished = self._wait()
            with self._lock:
                self._done = True
            if not is_finished:
                self._drop()
            for _thread in self._threads:
                self._queue.put(None)
            for thread in self._threads if is_finished else ():
                thread.join()
        lifecycle.unregister(self)
        return is_finished

    def _wait(self) -> bool:
        """Wait until all work is done; False: no piece was finished for PATIENCE seconds."""
        with self._progress:
            while self._unfinished:
                finished = self._finished

                def is_going_on(before: int = finished) -> bool:
                    return self._finished > before

                if not self._progress.wait_for(is_going_on, NOTICE):
                    self._report(_("op_tools: waits for {what} ({count} pending)"))
                    if not self._progress.wait_for(is_going_on, PATIENCE):
                        return False
        return True

    def _drop(self) -> None:
        """Empty the queue, and report what is lost."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        text = _(
            "op_tools: no longer waits for {what}: none in {seconds:,.0f} s. "
            "The results lack {count}; all others are written."
        )
        self._report(text)

    def _report(self, text: str) -> None:
        """Print a message about the pending work; the program's own output is not mixed with it."""
        fields = {"what": self._what, "count": self._unfinished, "seconds": PATIENCE}
        console(stderr=True).print(text.format(**fields), soft_wrap=True, markup=False)

    def after_fork(self) -> None:
        self._gone = True
        self._lock = threading.Lock()  # another thread may have had it

    def _work(self) -> None:
        with dispatch.unseen():
            for work in iter(self._queue.get, None):
                try:
                    work()
                finally:
                    with self._progress:
                        self._unfinished -= 1
                        self._finished += 1
                        self._progress.notify_all()


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
