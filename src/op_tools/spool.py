"""A file that grows at its end: bytes are put together in memory, and a thread writes them.

They go past the system's cache where that can be: its pages would cost more than the copy.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deeplink import settings
from op_tools import arena, interception
from op_tools.arena import BLOCK, Arena

DELAY = 0.002  # seconds that a few bytes wait for more of them
ENOUGH = 1 << 20  # bytes that do not wait
LEAST = 1 << 18  # bytes that are worth a write past the cache


class Settled(Protocol):
    """Bytes that are on their way to memory that will be written."""

    @property
    def first(self) -> int: ...  # where in the file they begin
    def settle(self, stop: int) -> None: ...  # they have come, those before that place
    def clear(self) -> None: ...


class Spool:
    """One appends at a time: `room`, then `advance`. What waits stays within OP_CAPTURE_MEMORY.

    `problem` is called, in the thread, when the file cannot be written; nothing is from then on.
    What is `waiting` is settled there before its bytes are written. `filling` gives so many bytes
    that mean nothing.
    """

    def __init__(
        self,
        path: Path,
        problem: Callable[[Exception], None],
        waiting: Settled,
        filling: Callable[[int], bytes],
    ) -> None:
        self.end = 0  # of the file, once what waits is written
        self.written = 0
        self.failed = ""
        self._path = path
        self._problem = problem
        self._file = os.open(path, os.O_WRONLY)
        self._direct = _open_direct(path)
        self._full: deque[Arena] = deque()  # those that wait, before the one that is being filled
        self._free: list[Arena] = []
        self.last = self._new(0, "")  # the one that is being filled
        self._late = waiting
        self._filling = filling
        self._idle = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="op_capture", daemon=True)
        self._thread.start()

    # Appending.

    def room(self, size: int, device: str = "") -> tuple[Arena, int]:
        """Where so many bytes may be put, in memory; waits while too much waits.

        With a `device`, in an arena of its own kind.
        """
        last = self.last
        if last.filled + size > last.size or (device and last.device != device):
            self._next(size, device or last.device)
        return self.last, self.last.filled

    def advance(self, size: int) -> None:
        """So many bytes of the room are a part of the file from now on."""
        self.last.filled += size
        self.end += size
        if self._idle:
            self.wake()

    def wake(self) -> None:
        """There is something to write."""
        with self._changed:
            self._changed.notify_all()

    def _next(self, size: int, device: str) -> None:
        """Another arena. The last one is filled up to the end of a block, for what it holds may
        still be on its way, and could not be copied.
        """
        if self._closed:
            self.flush()
        with self._changed:
            old = self.last
            if not self._closed:
                rest = -self.end % BLOCK
                old.view[old.filled : old.filled + rest] = self._filling(rest)
                old.filled += rest
                self.end += rest
                self._full.append(old)
                self._changed.notify_all()
            new = None
            while self._is_full(size, device) and not self.failed:
                new = self._near(size, device)
                if new is not None:
                    break
                self._changed.wait()
            if new is None:
                new = self._new(size, device)
            new.base, new.filled = self.end, 0
            self.last = new

    def _is_full(self, size: int, device: str) -> bool:
        """Whether so much waits in the host's memory that one has to wait for the file."""
        held = sum(each.size for each in self._full if each.near is None)
        need = held + max(size, self._usual(device))
        return bool(held) and need > settings.OP_CAPTURE_MEMORY.get()

    def _near(self, size: int, device: str) -> Arena | None:
        """One in the device's own memory, for then: unless a bound is set, and while all of them
        are a small share of what it has left.
        """
        if not device or _is_bounded():
            return None
        size = max(-(-size // BLOCK) * BLOCK, arena.NEAR)
        held = sum(each.size for each in self._full if each.near is not None)
        if held + size > arena.plenty(device) + held // arena.SHARE:
            return None
        made = Arena(size, device, near=True)
        return made if made.near is not None else None

    def _new(self, size: int, device: str) -> Arena:
        usual = self._usual(device)
        if size > usual:
            return arena.take(-(-size // BLOCK) * BLOCK, device)
        return arena.one_for(usual, device, self._free) or arena.take(usual, device)

    def _usual(self, device: str) -> int:
        """The size of an arena: some of them are within the limit. Those of a device grow, for it
        takes long to make one.
        """
        most = arena.SIZES[bool(device)]
        if device and self.end > arena.LARGE:
            most = arena.LARGE
        return max(16 * BLOCK, min(most, settings.OP_CAPTURE_MEMORY.get() // 4 // BLOCK * BLOCK))

    # Writing.

    def _work(self) -> None:
        with interception.unseen():
            while (piece := self._piece()) is not None:
                try:
                    if not self.failed:
                        self._settle(*piece)
                        self._write(*piece)
                except Exception as error:  # a full disk, say: the program goes on without it
                    self.failed = f"{type(error).__name__}: {error}"
                    self._problem(error)
                self._done(piece[0])

    def _piece(self) -> tuple[Arena, int] | None:
        """What is written next: an arena, up to some place in the file. None: this is the end."""
        with self._changed:
            while True:
                self._idle = True  # before the look at `end`, which another thread moves
                if self._full or self.end > self.written or self._closed:
                    break
                self._changed.wait()
            self._idle = False
            if not (self._full or self._closed) and self.end - self.written < ENOUGH:
                self._changed.wait(DELAY)
            if self._full:
                return self._full[0], _end(self._full[0])
            return (self.last, self.end) if self.end > self.written else None

    def _settle(self, piece: Arena, stop: int) -> None:
        """What is to be done before the file is written so far."""
        try:
            self._late.settle(stop)
        except Exception:
            self._put(self._file, piece, self.written, self._late.first)  # so far all is well
            raise

    def _write(self, piece: Arena, stop: int) -> None:
        start, whole = self.written // BLOCK * BLOCK, stop // BLOCK * BLOCK
        if self._direct is not None and whole - start >= LEAST:
            try:
                self._put(self._direct, piece, start, whole)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.close(self._direct)  # not on this file system
                self._direct = None
            else:
                return  # the rest waits for more
        self._put(self._file, piece, self.written, stop)

    def _put(self, file: int, piece: Arena, start: int, stop: int) -> None:
        while start < stop:
            put = os.pwrite(file, piece.view[start - piece.base : stop - piece.base], start)
            if not put:
                raise OSError(errno.EIO, "nothing was written")  # and would not be, for ever
            start += put
            self.written = max(self.written, start)

    def _done(self, piece: Arena) -> None:
        with self._changed:
            if self.failed:
                self._late.clear()
                self.written = self.end
                self._full.clear()
            elif self._full and self.written >= _end(piece):
                self._full.popleft()
                # a device's own memory is the program's again
                if piece.near is None and piece.size == self._usual(piece.device):
                    self._free.append(piece)
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until what is there now is written."""
        with self._changed:
            end = self.end
            while not self.failed and not self._closed and self.written < end:
                self._changed.wait(DELAY)

    def flush(self) -> None:
        """After the end: writes here and now."""
        file = os.open(self._path, os.O_WRONLY)
        try:
            self._settle(self.last, self.end)
            self._put(file, self.last, self.written, self.end)
        finally:
            os.close(file)

    def close(self) -> None:
        """Waits until everything is written."""
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for file in (self._file, self._direct):
            if file is not None:
                os.close(file)
        for each in (self.last, *self._free):
            arena.give(each)
        self._free.clear()
        self.last = Arena(0)


def _is_bounded() -> bool:
    """Whether it was said how much may wait."""
    return settings.OP_CAPTURE_MEMORY.is_set()


def _end(piece: Arena) -> int:
    """Where in the file it ends so far."""
    return piece.base + piece.filled


def _open_direct(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except (OSError, AttributeError):  # not on this file system, or not on this system
        return None
