# SPDX-License-Identifier: Apache-2.0
"""The packed store: one archive for each process. A thread writes it while the program goes on.

`take` copies a tensor at once; the copy and the parts of calls pass through one queue, in order.
So a part of a call stands in the file behind its values, and a file that is cut anywhere is
readable up to there. The thread writes equal contents once: it knows them by their hash.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools.capture.encoding import PARTS, TAG, Part
from op_tools.capture.packed_reader import ABOUT, ALIGN, CALL, HEAD, MAGIC, SUFFIX, VALUES
from op_tools.core import dispatch, lifecycle, output_paths, tool_errors
from op_tools.tensors import statistics
from op_tools.tensors.snapshot import Snapshot, check, describe, ordered
from op_tools.tensors.staging import Staging

ABOUT_BYTES = 256  # of the data of the first record, which is rewritten in place at the end
PART_BYTES = 4096  # what a part of a call in the queue counts as


@dataclass(frozen=True, slots=True)
class _Values:
    """A copy of a tensor in the queue; the writer sets the place of the snapshot."""

    taken: Snapshot
    memory: Tensor
    arrived: torch.Event | None

    @property
    def held(self) -> int:
        return self.memory.numel()


@dataclass(frozen=True, slots=True)
class _Written:
    """A part of a call in the queue."""

    part: Part

    @property
    def held(self) -> int:
        return PART_BYTES


class PackedStore:
    """An archive that is being written: `path` anew, or a new file under OP_TOOLS_RESULTS.

    At most OP_CAPTURE_MEMORY bytes are in the queue; `take` and `write` block while it is full.
    """

    native = False

    def __init__(self, path: Path | None = None) -> None:
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        if path is None:
            folder = output_paths.folder("op_capture_results")
            path = _create(
                folder, f"packed-{output_paths.owner(folder)}-{stamp}{output_paths.rank()}"
            )
        self.place = path
        self.files = 1
        self.failed = ""
        self._pid = os.getpid()
        self._about = {"op_tools": 1, "pid": self._pid, "torch": torch.__version__, "time": stamp}
        self._calls = self._parts = 0
        self._end = 0
        self._places: dict[tuple[int, int], tuple[int, int]] = {}  # by hash and size
        self._file = path.open("wb", buffering=0)
        data = self._description()
        self._record(ABOUT, 0, zlib.crc32(data), data)
        self._staging = Staging(settings.OP_CAPTURE_MEMORY.get())
        self._queue: queue.SimpleQueue[_Values | _Written | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="op_capture_writes", daemon=True)
        self._thread.start()
        lifecycle.begun(self, beneath=True)

    def take(self, tensor: Tensor) -> Snapshot:
        """Copy a tensor and queue its values; their place is known once they are written."""
        check(tensor)
        taken, (flat, _) = describe(tensor), ordered(tensor)
        if flat.numel() and not self._is_over():
            self._put(_Values(taken, *self._staging.copy(flat)))
        return taken

    def write(self, part: Part) -> None:
        """Queue a part of a call, encoded, whose tensors were taken before."""
        if not self._is_over():
            self._staging.reserve(PART_BYTES)
            self._put(_Written(part))

    def drain(self) -> None:
        """Wait until the queue is written: then it is known which contents were there already."""
        self._staging.drain()

    def _is_over(self) -> bool:
        return bool(self.failed) or os.getpid() != self._pid

    def _put(self, item: _Values | _Written) -> None:
        output_paths.budget.spend(item.held)
        with self._lock:
            if not self._closed:
                self._queue.put(item)
                return
            with self.place.open("r+b", buffering=0) as self._file:  # a backward pass after the end
                self._file.seek(self._end)
                self._append(item)

    # The thread.

    def _work(self) -> None:
        with dispatch.unseen():
            while (item := self._queue.get()) is not None:
                self._append(item)

    def _append(self, item: _Values | _Written) -> None:
        begin = self._end
        try:
            if not self.failed:
                self._values(item) if isinstance(item, _Values) else self._part(item.part)
        except Exception as error:  # a full disk, a device that has failed: the program goes on
            self.failed = f"{type(error).__name__}: {error}"
            tool_errors.add("OpCapture", self.place.name, error)
            self._file.truncate(begin)
            self._end = begin
        finally:
            output_paths.budget.spend(self._end - begin - item.held)
            self._staging.release(item.held)

    def _values(self, item: _Values) -> None:
        if item.arrived is not None:
            item.arrived.synchronize()
        size, hashed = item.held, statistics.hash_of(item.memory)
        place = self._places.get((hashed, size))
        if place is None:
            place = self._places[hashed, size] = self._end + HEAD.size, size
            raw: Any = item.memory.numpy()  # typed as no buffer, which it is
            self._record(VALUES, 0, hashed, memoryview(raw))
        item.taken.place = place

    def _part(self, part: Part) -> None:
        numbers: dict[int, int] = {}

        def leaf(taken: Snapshot) -> dict[str, Any]:
            return _tensor(taken, numbers.setdefault(id(taken), len(numbers)))

        header = part.header
        about = {
            "call": header if part.kind == "input" else {"id": header["id"]},
            "args": part.args,
            "kwargs": part.kwargs,
            **part.more,
        }
        text = json.dumps(about, separators=(",", ":"), default=leaf).encode()
        self._record(CALL, PARTS.index(part.kind), zlib.crc32(text), text, header["id"])
        self._calls += part.kind == "input"
        self._parts += 1

    def _record(
        self, kind: int, part: int, hashed: int, data: bytes | memoryview, call: int = 0
    ) -> None:
        size = len(data)
        head = HEAD.pack(MAGIC, kind, part, size, hashed, call)
        padding = bytes(-size % ALIGN)
        for piece in (head, data, padding) if kind == VALUES else (head + data + padding,):
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._end += len(head) + size + len(padding)

    def _description(self, **totals: int) -> bytes:
        return json.dumps({**self._about, **totals}).encode().ljust(ABOUT_BYTES)

    # The end.

    def close(self) -> None:
        """Wait until everything is written, and write the totals into the first record."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        self._queue.put(None)
        self._thread.join()
        lifecycle.over(self)
        if not self.failed:
            data = self._description(bytes=self._end, calls=self._calls, parts=self._parts)
            self._file.seek(0)
            self._file.write(HEAD.pack(MAGIC, ABOUT, 0, len(data), zlib.crc32(data), 0) + data)
        self._file.close()

    def forget(self) -> None:
        """In a forked child: the file is the parent's."""

    @property  # the last of all: it hides the type of the same name
    def bytes(self) -> int:
        """Bytes of the file so far."""
        return self._end


def _tensor(taken: Snapshot, number: int) -> dict[str, Any]:
    value = {
        "at": taken.place,
        "number": number,  # a tensor that was given twice has the same one
        "dtype": _word(taken.dtype),
        "shape": taken.shape,
        "stride": taken.stride,
        "device": taken.device,
        "requires_grad": taken.requires_grad,
    }
    return {TAG: "tensor", "value": value}


@cache
def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _create(folder: Path, name: str) -> Path:
    number = 1
    while True:
        path = folder / (f"{name}{SUFFIX}" if number == 1 else f"{name}-{number}{SUFFIX}")
        try:
            path.touch(0o644, exist_ok=False)
            return path
        except FileExistsError:
            number += 1
