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
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools.capture.encoding import PARTS, TAG, Part
from op_tools.capture.packed_reader import ABOUT, ALIGN, CALL, HEAD, MAGIC, SUFFIX, VALUES
from op_tools.core import output_paths, tool_errors
from op_tools.core.worker import Background
from op_tools.tensors import statistics
from op_tools.tensors.snapshot import Snapshot, check, describe, ordered
from op_tools.tensors.staging import Staging

ABOUT_BYTES = 256  # size of the first record's data, which is rewritten in place at the end
PART_BYTES = 4096  # size that a part of a call in the queue is counted as


@dataclass(frozen=True, slots=True)
class _Values:
    """A copy of a tensor in the queue; the writer sets the place of the snapshot."""

    snapshot: Snapshot
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
        self._writer = Background(0)  # the bound is that of the staging memory

    def take(self, tensor: Tensor) -> Snapshot:
        """Copy a tensor and queue its values; the writer sets the place of the snapshot."""
        check(tensor)
        snapshot, (flat, _) = describe(tensor), ordered(tensor)
        if flat.numel() and not self._is_over():
            self._put(_Values(snapshot, *self._staging.copy(flat)))
        return snapshot

    def write(self, part: Part) -> None:
        """Queue an encoded part of a call, whose tensors are in the queue."""
        if not self._is_over():
            self._staging.reserve(PART_BYTES)
            self._put(_Written(part))

    def drain(self) -> None:
        """Wait until the queue is written, and equal contents are found."""
        self._staging.drain()

    def _is_over(self) -> bool:
        return bool(self.failed) or os.getpid() != self._pid

    def _put(self, item: _Values | _Written) -> None:
        output_paths.budget.spend(item.held)
        with self._lock:
            if not self._closed:
                self._writer.put(partial(self._append, item))
                return
            with self.place.open("r+b", buffering=0) as self._file:  # a backward pass after the end
                self._file.seek(self._end)
                self._append(item)

    # In the writer's thread.

    def _append(self, item: _Values | _Written) -> None:
        begin = self._end
        try:
            if not self.failed:
                self._values(item) if isinstance(item, _Values) else self._part(item.part)
        except Exception as error:  # a full disk, a failed device: the program goes on
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
            raw: Any = item.memory.numpy()  # numpy's types do not declare the buffer protocol
            self._record(VALUES, 0, hashed, memoryview(raw))
        item.snapshot.place = place

    def _part(self, part: Part) -> None:
        numbers: dict[int, int] = {}

        def leaf(snapshot: Snapshot) -> dict[str, Any]:
            return _tensor(snapshot, numbers.setdefault(id(snapshot), len(numbers)))

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
        self._writer.close()
        if not self.failed:
            data = self._description(bytes=self._end, calls=self._calls, parts=self._parts)
            self._file.seek(0)
            self._file.write(HEAD.pack(MAGIC, ABOUT, 0, len(data), zlib.crc32(data), 0) + data)
        self._file.close()

    @property  # the last attribute: it hides the built-in `bytes`
    def bytes(self) -> int:
        """Bytes of the file so far."""
        return self._end


def _tensor(snapshot: Snapshot, number: int) -> dict[str, Any]:
    value = {
        "at": snapshot.place,
        "number": number,  # equal for the places of one tensor
        "dtype": _word(snapshot.dtype),
        "shape": snapshot.shape,
        "stride": snapshot.stride,
        "device": snapshot.device,
        "requires_grad": snapshot.requires_grad,
    }
    return {TAG: "tensor", "value": value}


@cache
def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
