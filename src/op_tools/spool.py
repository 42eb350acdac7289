"""A file that grows at its end: bytes are put together in memory, and threads write them.

They go past the system's cache where that can be: its pages would cost more than the copy.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

from deeplink import settings
from op_tools import arena, endings, interception, kernels
from op_tools.arena import BLOCK, Arena

DELAY = 0.004  # seconds that a few bytes wait for more of them
ENOUGH = 32 << 20  # bytes that do not wait
LEAST = 1 << 18  # bytes that are worth a write past the cache
FEW = 16 << 20  # bytes that do not go by way of a device's own memory
MOST = 8  # threads that write to a file in memory while the program waits, and bytes that
TOGETHER = 1 << 20  # are worth it
LANDINGS = 3  # of memory that what waits in a device's own is fetched into


class Settled(Protocol):
    """Bytes that are on their way to memory that will be written."""

    @property
    def first(self) -> int: ...  # where in the file they begin
    def settle(self, stop: int) -> None: ...  # they have come, those before that place
    def clear(self) -> None: ...


class Lands(Settled, Protocol):
    """The same of the native part, which alone fills memory that has a device's own behind it."""

    # a part of that lies in `landing` then
    def land(self, stop: int, host: Tensor, landing: Tensor, start: int, end: int) -> None: ...


class Spool:
    """One appends at a time: `room`, then `advance`. What waits stays within OP_CAPTURE_MEMORY.

    A thread settles what is `waiting`, another one writes what is settled. `problem` is called
    there when the file cannot be written; nothing is from then on. `filling` gives so many bytes
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
        self.written = self._settled = 0
        self.failed = ""
        self._broken: Exception | None = None  # why no more can be settled
        self._path = path
        self._problem = problem
        self._file = os.open(path, os.O_RDWR)
        self._together = _writers(self._file)  # threads that write to a file in memory
        self._direct = None if self._together else _open_direct(path)
        self._full: deque[Arena] = deque()  # those that wait, before the one that is being filled
        self._free: list[Arena] = []
        self._landings: list[Arena] = []
        self._landed = 0  # of them, those in use
        self.last = self._new(0, "")  # the one that is being filled
        self._late = waiting
        self._filling = filling
        self._idle = False
        self._closed = self._all_settled = self._gone = False
        self._awaited = False  # the program waits for memory
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=work, name=f"op_capture_{name}", daemon=True)
            for name, work in (("settles", self._settles), ("writes", self._writes))
        ]
        for thread in self._threads:
            thread.start()
        endings.begun(self, beneath=True)

    # Appending.

    def room(self, size: int, device: str = "") -> tuple[Arena, int]:
        """Where so many bytes may be put, in memory; waits while too much waits.

        With a `device`, in an arena of its own kind.
        """
        last = self.last
        own = last.near is not None and not device  # what lies there is not laid out as the file is
        if own or last.filled + size > last.size or (device and last.device != device):
            self._next(size, device or ("" if own else last.device))
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
                if old.near is None:
                    old.view[old.filled : old.filled + rest] = self._filling(rest)
                else:
                    old.rest = rest
                old.filled += rest
                self.end += rest
                self._full.append(old)
                self._changed.notify_all()
            new = self._near(size, device)
            while new is None and self._is_full(size, device) and not self.failed:
                self._awaited = True
                self._changed.wait()
                new = self._near(size, device)
            self._awaited = False
            self.last = new if new is not None else self._new(size, device)
            self.last.start(self.end)

    def _is_full(self, size: int, device: str) -> bool:
        """Whether so much waits in the host's memory that one has to wait for the file."""
        held = sum(each.size for each in self._full if each.near is None)
        need = held + max(size, self._usual(device))
        return bool(held) and need > settings.OP_CAPTURE_MEMORY.get()

    def _near(self, size: int, device: str) -> Arena | None:
        """One in the device's own memory, which takes the program less time: for more than a few
        bytes, unless a bound is set, and while all of them are a small share of what it has left.
        """
        if not device or self.end < FEW or self._closed or _is_bounded():
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

    # Settling.

    def _settles(self) -> None:
        with interception.unseen():
            while (piece := self._unsettled()) is not None:
                try:
                    self._settle(*piece)
                except Exception as error:  # the device has failed, say
                    self._broken = error
                with self._changed:
                    self._changed.notify_all()
            with self._changed:
                self._all_settled = True
                self._changed.notify_all()

    def _unsettled(self) -> tuple[Arena, int] | None:
        """What is settled next: an arena, up to some place in the file. None: this is the end."""
        with self._changed:
            while True:
                self._idle = True  # before the look at `end`, which another thread moves
                if self._settled < self.end or self._closed or self.failed or self._broken:
                    break
                self._changed.wait()
            self._idle = False
            if self.failed or self._broken:
                return None
            stop = time.monotonic() + DELAY
            while self._may_wait() and (left := stop - time.monotonic()) > 0:
                self._changed.wait(left)
            piece = next((each for each in self._full if each.end > self._settled), self.last)
            return (piece, piece.end) if piece.end > self._settled else None

    def _may_wait(self) -> bool:
        """Whether there are but a few bytes: each turn takes time of the program's."""
        is_last = not self._full or self._full[-1].end <= self._settled
        return is_last and not self._closed and self.end - self._settled < ENOUGH

    def _settle(self, piece: Arena, stop: int) -> None:
        """What is to be done before the file is written so far."""
        to = stop - piece.base
        try:
            if piece.near is None:
                self._late.settle(stop)
            else:
                landed = self._landing(piece)
                with self._changed:
                    own = min(to, piece.filled - piece.rest)
                late = cast("Lands", self._late)
                late.land(stop, piece.memory, landed.memory, piece.settled, own)
                landed.view[own:to] = self._filling(to - own)
        except Exception:
            first = min(to, self._late.first - piece.base)
            self._settled = piece.base + max(piece.settled, first)  # so far all is well
            raise
        piece.settled = to
        self._settled = stop

    def _landing(self, piece: Arena) -> Arena:
        """Memory that the file is written from instead of a device's own."""
        if piece.landed is not None:
            return piece.landed
        with self._changed:
            while self._landed >= LANDINGS and not self.failed:
                self._changed.wait()
            self._landed += 1
            found = arena.one_for(piece.size, piece.device, self._landings)
        piece.landed = found or arena.take(piece.size, piece.device)
        return piece.landed

    # Writing.

    def _writes(self) -> None:
        with interception.unseen():
            while (piece := self._unwritten()) is not None:
                try:
                    self._write(*piece)
                except Exception as error:  # a full disk, say: the program goes on without it
                    self._fail(error)
                self._done(piece[0])
            if self._broken is not None and not self.failed:
                self._fail(self._broken)
            if self.failed:
                self._give_up()

    def _unwritten(self) -> tuple[Arena, int] | None:
        """What is written next: an arena, up to some place in the file. None: no more is."""
        with self._changed:
            while self.written >= self._settled and not self._all_settled and not self.failed:
                self._changed.wait()
            if self.failed or self.written >= self._settled:
                return None
            piece = next((each for each in self._full if each.end > self.written), self.last)
            return piece, min(piece.end, self._settled)

    def _write(self, piece: Arena, stop: int) -> None:
        waits = self._closed or self._awaited  # else it would take time of the program's
        if self._together and waits and stop - self.written >= TOGETHER:
            try:
                self._put_together(piece, stop)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._together = 0  # an older system
            else:
                return
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

    def _put_together(self, piece: Arena, stop: int) -> None:
        memory, start = piece.landed or piece, self.written
        helper = kernels.helper()
        assert helper is not None  # there are several threads
        address = memory.address + start - piece.base
        helper.put_in_memory(self._file, address, start, stop, self._together)
        self.written = stop

    def _put(self, file: int, piece: Arena, start: int, stop: int) -> None:
        view = (piece.landed or piece).view
        while start < stop:
            put = os.pwrite(file, view[start - piece.base : stop - piece.base], start)
            if not put:
                raise OSError(errno.EIO, "nothing was written")  # and would not be, for ever
            start += put
            self.written = max(self.written, start)

    def _done(self, piece: Arena) -> None:
        with self._changed:
            if self._full and piece is self._full[0] and self.written >= piece.end:
                self._full.popleft()
                if piece.landed is not None:
                    self._landings.append(piece.landed)
                    self._landed -= 1
                    piece.landed = None
                    arena.give(piece)
                elif piece.size == self._usual(piece.device):
                    self._free.append(piece)
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        self.failed = f"{type(error).__name__}: {error}"
        self._problem(error)
        with self._changed:
            self._changed.notify_all()

    def _give_up(self) -> None:
        """Lets go of what waits, and of what comes meanwhile, once nobody settles any more."""
        self._threads[0].join()
        with self._changed:
            while True:
                self._late.clear()
                self._full.clear()
                self.written = self._settled = self.end
                self._changed.notify_all()
                if self._closed:
                    return
                self._changed.wait()

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
            if not self._broken:
                self._settle(self.last, self.end)
                self._put(file, self.last, self.written, self.end)
        finally:
            os.close(file)

    def close(self) -> None:
        """Waits until everything is written."""
        if self._gone:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.forget()
        endings.over(self)
        for file in (self._file, self._direct):
            if file is not None:
                os.close(file)
        for each in (self.last, *self._free, *self._landings):
            arena.give(each)
        self._free.clear()
        self._landings.clear()
        self.last = Arena(0)

    def forget(self) -> None:
        """Nobody writes any more, nor is waited for."""
        self._gone = True


def _is_bounded() -> bool:
    """Whether it was said how much may wait."""
    return settings.OP_CAPTURE_MEMORY.is_set()


def _writers(file: int) -> int:
    """Threads that write to a file which lies in memory; 0: it does not, or there are few."""
    helper, count = kernels.loaded(), min((os.cpu_count() or 1) - 2, MOST)
    return count if helper is not None and count >= 4 and helper.is_in_memory(file) else 0


def _open_direct(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except (OSError, AttributeError):  # not on this file system, or not on this system
        return None
