"""Work that a tool does in a thread of its own, with a bound on what waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from op_tools import interception

WAITING = 64  # pieces of work that wait at most; then the program waits


class Background:
    """One thread that does what it is given, in order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(WAITING)
        self._closed = False
        self._thread: threading.Thread | None = None  # from the first piece of work on
        self._lock = threading.Lock()

    def put(self, work: Callable[[], object]) -> None:
        """Queues a piece of work, which must not raise; waits while too many do."""
        if self._closed:  # a backward pass after the end
            work()
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="op_tools", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Waits until all is done."""
        self._closed = True
        if self._thread is not None and self._thread.is_alive():  # not in a forked child
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        with interception.unseen():
            while (work := self._queue.get()) is not None:
                work()
