# SPDX-License-Identifier: Apache-2.0
"""The packed store: one archive for each process, written by a thread.

`take` copies a tensor at once; copies and parts of calls pass through one queue, in order. So the
values precede the part of a call that refers to them, and a truncated file is readable up to its
end. Equal contents, found by their hash, are written once.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.i18n import _
from op_tools.capture.encoding import PARTS, TAG, Part
from op_tools.capture.packed_reader import ABOUT, ALIGN, CALL, HEADER, MAGIC, SUFFIX, VALUES
from op_tools.core import output_paths, tool_errors
from op_tools.core.worker import Background
from op_tools.tensors import statistics
from op_tools.tensors.snapshot import Snapshot, check, describe, dtype_name, ordered
from op_tools.tensors.staging import Staging

ABOUT_BYTES = 256  # size of the first record's data, which is rewritten in place at the end
PART_BYTES = 4096  # size that a part of a call in the queue is counted as


class PackedStore:
    """An archive that is being written: `path`, overwritten, or a new file under OP_TOOLS_RESULTS.

    At most OP_CAPTURE_MEMORY bytes are in the queue; `take` and `write` block while it is full.
    """

    native = False

    def __init__(self, path: Path | None = None) -> None:
        stamp = output_paths.stamp()
        if path is None:
            folder = output_paths.folder("op_capture_results")
            stem = f"packed-{output_paths.owner(folder)}-{stamp}{output_paths.rank()}"
            path = output_paths.create(folder / f"{stem}{SUFFIX}")
        self.place = path
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
        self._lock = threading.RLock()
        self._closed = False
        # the bound is that of the staging memory
        self._writer = Background(_("captured tensors and calls of OpCapture"), 0)

    def take(self, tensor: Tensor) -> Snapshot:
        """Copy a tensor and queue its values; the writer sets the place of the snapshot."""
        check(tensor)
        snapshot, (flat, _) = describe(tensor), ordered(tensor)
        if flat.numel() and not self._is_over():
            memory, arrived = self._staging.copy(flat)
            self._put(memory.numel(), partial(self._values, snapshot, memory, arrived))
        return snapshot

    def write(self, part: Part) -> None:
        """Queue an encoded part of a call, whose tensors are in the queue."""
        if not self._is_over():
            self._staging.reserve(PART_BYTES)
            self._put(PART_BYTES, partial(self._part, part))

    def drain(self) -> None:
        """Wait until the queue is written, and equal contents are found."""
        self._staging.drain()

    def _is_over(self) -> bool:
        return bool(self.failed) or os.getpid() != self._pid

    def _put(self, held: int, write: Callable[[], None]) -> None:
        output_paths.budget.spend(held)
        with self._lock:
            if not self._closed:
                self._writer.put(partial(self._append, held, write))
                return
            with self.place.open("r+b", buffering=0) as self._file:  # a backward pass after the end
                self._file.seek(self._end)
                self._append(held, write)

    # In the writer's thread.

    def _append(self, held: int, write: Callable[[], None]) -> None:
        begin = self._end
        try:
            if not self.failed:
                write()
        except Exception as error:  # a full disk, a failed device: the program goes on
            self.failed = f"{type(error).__name__}: {error}"
            tool_errors.add("OpCapture", self.place.name, error)
            self._file.truncate(begin)
            self._end = begin
        finally:
            output_paths.budget.spend(self._end - begin - held)
            self._staging.release(held)

    def _values(self, snapshot: Snapshot, memory: Tensor, arrived: torch.Event | None) -> None:
        """Write the values of a tensor, unless they are in the file, and set their place."""
        if arrived is not None:
            arrived.synchronize()
        size, hashed = memory.numel(), statistics.hash_of(memory)
        place = self._places.get((hashed, size))
        if place is None:
            place = self._places[hashed, size] = self._end + HEADER.size, size
            raw: Any = memory.numpy()  # numpy's types do not declare the buffer protocol
            self._record(VALUES, 0, hashed, memoryview(raw))
        snapshot.place = place

    def _part(self, part: Part) -> None:
        numbers: dict[int, int] = {}

        def leaf(snapshot: Snapshot) -> dict[str, Any]:
            value = {
                "at": snapshot.place,
                # equal for the places of one tensor
                "number": numbers.setdefault(id(snapshot), len(numbers)),
                "dtype": dtype_name(snapshot.dtype),
                "shape": snapshot.shape,
                "stride": snapshot.stride,
                "device": snapshot.device,
                "requires_grad": snapshot.requires_grad,
            }
            return {TAG: "tensor", "value": value}

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
        header = HEADER.pack(MAGIC, kind, part, size, hashed, call)
        padding = bytes(-size % ALIGN)
        for piece in (header, data, padding) if kind == VALUES else (header + data + padding,):
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._end += len(header) + size + len(padding)

    def _description(self, **totals: int) -> bytes:
        return json.dumps({**self._about, **totals}).encode().ljust(ABOUT_BYTES)

    # The end.

    def close(self) -> None:
        """Wait until everything is written, and write the totals into the first record."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        if not self._writer.close():
            return  # the thread may still write; the file is read as that of a killed process
        if not self.failed:
            data = self._description(bytes=self._end, calls=self._calls, parts=self._parts)
            self._file.seek(0)
            self._file.write(HEADER.pack(MAGIC, ABOUT, 0, len(data), zlib.crc32(data), 0) + data)
        self._file.close()

    @property  # the last attribute: it hides the built-in `bytes`
    def bytes(self) -> int:
        """Bytes of the file so far."""
        return self._end
