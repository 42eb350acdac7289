"""The packed store: one archive for each process, each content once, whole up to its last record.

The file is a row of records: a head of 64 bytes, then what it is about, padded to 64 bytes. A
head holds the length and a checksum of what follows, so a reader knows how far the file is whole.
A record is the values of a tensor (raw bytes) or a part of a call (JSON). Nothing in it can run.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeplink import settings
from op_tools import diagnostics, interception, results, statistics, store
from op_tools.pool import Pool
from op_tools.snapshot import Blob, Snapshot, rebuild
from op_tools.store import PARTS, TAG, Part, Recorded

SUFFIX = ".opcap"
MAGIC = b"OPC1"
HEAD = struct.Struct("<4sBBxxQQQ32x")  # magic, kind, part, length, hash, call
ABOUT, VALUES, CALL = 1, 2, 3  # kinds
ALIGN = 64
AT_ONCE = 1000  # pieces of memory in one write; Linux takes 1024
_ZEROS = bytes(ALIGN)
Place = tuple[int, int]  # where the bytes of a tensor are, and how many


class PackedStore:
    """Writes in a thread of its own; what waits to be written stays within OP_CAPTURE_MEMORY."""

    native = False

    def __init__(self) -> None:
        folder = results.folder("op_capture_results")
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        name = f"packed-{results.owner(folder)}-{stamp}"
        self.place, self._file = _create(folder, name)
        self.files = 1
        self.bytes = 0
        self.failed = ""
        self.pool = Pool()  # of the values that wait
        self.saved = 0  # bytes that were not written again
        self._pid = os.getpid()
        self._end = 0  # of the file, once what is pending is written
        self._pending: list[bytes | memoryview] = []
        self._done: list[Blob] = []  # whose values are pending
        self._contents: dict[tuple[int, int], Place] = {}
        self._queue: deque[tuple[Part, int]] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closed = False
        about = {"op_tools": 1, "pid": self._pid, "torch": torch.__version__, "time": stamp}
        self._record(ABOUT, 0, 0, json.dumps(about).encode())
        self._flush()
        self._thread = threading.Thread(target=self._work, name="op_capture", daemon=True)
        self._thread.start()

    def write(self, part: Part) -> None:
        """Hands a part over to the writer; waits while too much is waiting."""
        if self.failed or os.getpid() != self._pid:
            return
        size = part.fresh
        limit = settings.OP_CAPTURE_MEMORY.get()
        with self._changed:
            if self._closed:  # a backward pass after the end: written here and now
                self._write(part)
                return
            while self._queue and self._waiting + size > limit and not self.failed:
                self._changed.wait()
            self._queue.append((part, size))
            self._waiting += size
            self._changed.notify_all()

    def has(self, blob: Blob) -> bool:
        """Whether these values are written already; then they are let go of.

        They are hashed here, where they have just been copied, and are still in the cache.
        """
        assert blob.values is not None  # they are new
        if blob.nbytes:
            dense = blob.values.as_strided((blob.values.numel(),), (1,))
            blob.hash = statistics.hash_of(dense)
            blob.place = self._contents.get((blob.hash, blob.nbytes))
        if blob.place is None:
            return False
        self.pool.give(blob.values)
        blob.values = None
        return True

    @property
    def waiting(self) -> int:
        """About how many bytes will be written yet."""
        return self._waiting + 2048 * len(self._queue)

    def close(self) -> None:
        """Waits until everything is written."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.pool.clear()

    def _work(self) -> None:
        with interception.unseen():
            while True:
                with self._changed:
                    while not self._queue and not self._closed:
                        self._changed.wait()
                    if not self._queue:
                        return
                    part, size = self._queue[0]
                self._try(part)
                with self._changed:
                    self._queue.popleft()
                    self._waiting -= size
                    self._changed.notify_all()

    def _try(self, part: Part) -> None:
        try:
            if not self.failed:
                self._write(part)
        except Exception as error:  # a full disk, say: the program goes on without the archive
            self.failed = f"{type(error).__name__}: {error}"
            diagnostics.add("OpCapture", part.header["name"], error)
            os.ftruncate(self._file, self.bytes)

    def _write(self, part: Part) -> None:
        header = part.header
        numbers: dict[int, int] = {}

        def leaf(taken: Snapshot) -> dict[str, Any]:
            return self._tensor(taken, numbers.setdefault(id(taken), len(numbers)))

        about = {
            "call": header if part.kind == "input" else {"id": header["id"]},
            "args": part.args,
            "kwargs": part.kwargs,
            **part.more,
        }
        text = json.dumps(about, separators=(",", ":"), default=leaf).encode()
        self._record(CALL, PARTS.index(part.kind), header["id"], text)
        self._flush()

    def _tensor(self, taken: Snapshot, number: int) -> dict[str, Any]:
        blob = taken.blob
        if blob.place is None:
            blob.place = self._values(blob)
            self._done.append(blob)
        else:
            self.saved += blob.nbytes
        value = {
            "at": blob.place,
            "number": number,  # a tensor that was given twice has the same one
            "dtype": _word(taken.dtype),
            "shape": taken.shape,
            "stride": taken.stride,
            "device": taken.device,
            "requires_grad": taken.requires_grad,
        }
        return {TAG: "tensor", "value": value}

    def _values(self, blob: Blob) -> Place:
        assert blob.values is not None  # they have no place yet
        size = blob.nbytes
        if not size:
            return 0, 0
        dense = blob.values.as_strided((size // blob.values.element_size(),), (1,))
        hashed = statistics.hash_of(dense) if blob.hash is None else blob.hash
        place = self._contents.get((hashed, size))
        if place is not None:
            self.saved += size
            return place
        raw: Any = dense.view(torch.uint8).numpy()  # typed as no buffer, which it is
        place = self._record(VALUES, 0, 0, memoryview(raw), hashed), size
        self._contents[hashed, size] = place
        return place

    def _record(
        self, kind: int, part: int, call: int, data: bytes | memoryview, hashed: int | None = None
    ) -> int:
        """Puts a record in the row of those to be written; where its data will be."""
        length = len(data)
        if hashed is None:
            hashed = zlib.crc32(data)  # of a short text: cheaper than the hash
        padding = -length % ALIGN
        start = self._end + HEAD.size
        self._pending += [
            HEAD.pack(MAGIC, kind, part, length, hashed, call),
            data,
            _ZEROS[:padding],
        ]
        self._end = start + length + padding
        return start

    def _flush(self) -> None:
        """Writes the records of a part, all at once, and lets go of their values."""
        _write_all(self._file, self._pending)
        results.budget.spend(self._end - self.bytes)
        self.bytes = self._end
        self._pending.clear()
        for blob in self._done:
            assert blob.values is not None  # they are let go of here alone
            self.pool.give(blob.values)
            blob.values = None
        self._done.clear()


@cache
def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _create(folder: Path, name: str) -> tuple[Path, int]:
    number = 1
    while True:
        path = folder / (f"{name}{SUFFIX}" if number == 1 else f"{name}-{number}{SUFFIX}")
        try:
            return path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            number += 1


def _write_all(file: int, parts: list[bytes | memoryview]) -> None:
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        done = os.writev(file, left[:AT_ONCE])
        at = 0
        while at < len(left) and done >= len(left[at]):
            done -= len(left[at])
            at += 1
        del left[:at]
        if done:
            left[0] = left[0][done:]


# Reading.


@dataclass(frozen=True)
class _Found:
    part: int
    start: int
    length: int
    hashed: int


class Archive:
    """An archive for reading: the calls that are whole, and how much of its end is not."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._map: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._calls: OrderedDict[int, list[_Found]] = OrderedDict()
        self.whole = self._scan()
        self.lost = size - self.whole  # bytes after the last whole record

    def _scan(self) -> int:
        at, size = 0, len(self._map)
        while at + HEAD.size <= size:
            magic, kind, part, length, hashed, call = HEAD.unpack_from(self._map, at)
            start = at + HEAD.size
            if magic != MAGIC or start + length > size or kind not in (ABOUT, VALUES, CALL):
                break
            if at == 0 and kind != ABOUT:
                break
            if kind == CALL:
                if zlib.crc32(memoryview(self._map)[start : start + length]) != hashed:
                    break
                self._calls.setdefault(call, []).append(_Found(part, start, length, hashed))
            at = min(size, start + length + -length % ALIGN)
        if at == 0:
            raise ValueError(f"{self.path} is no archive of captured calls")
        return at

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[int]:
        """The ids of the calls, in their order."""
        return iter(self._calls)

    def header(self, call: int) -> store.Header:
        """Which call it is: name, step, module, line, …"""
        header: store.Header = self._json(self._calls[call][0])["call"]
        return header

    def load(self, call: int) -> Recorded:
        """A call with its tensors, in memory of their own; ValueError when bytes are damaged."""
        parts = {PARTS[found.part]: self._json(found) for found in self._calls[call]}
        given, output = parts["input"], parts.get("output", {})
        made: dict[int, Tensor] = {}

        def leaf(value: dict[str, Any]) -> Tensor:
            if value["number"] not in made:
                made[value["number"]] = self._tensor(value)
            return made[value["number"]]

        args, kwargs = store.decode(given["args"], leaf), store.decode(given["kwargs"], leaf)

        def own(value: Any) -> Any:
            return store.decode(value, self._tensor)

        gradients = {
            kind: own(parts[kind]["args"]) if kind in parts else None
            for kind in ("grad_inputs", "grad_outputs")
        }
        return Recorded(
            given["call"],
            tuple(args),
            kwargs,
            store.devices_of(given["call"], args, kwargs),
            own(output["args"])[0] if output else None,
            bool(output),
            {int(place): own(value) for place, value in output.get("mutated", {}).items()},
            frozenset(output.get("written", ())),
            list(gradients["grad_inputs"]) if gradients["grad_inputs"] is not None else None,
            list(gradients["grad_outputs"]) if gradients["grad_outputs"] is not None else None,
            bool(parts.get("grad_inputs", {}).get("complete", True)),
        )

    def _json(self, found: _Found) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self._map[found.start : found.start + found.length])
        return parsed

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        start, length = value["at"]
        dtype = getattr(torch, value["dtype"])
        shape, stride = tuple(value["shape"]), tuple(value["stride"])
        if not length:
            return torch.empty_strided(shape, stride, dtype=dtype)
        hashed = HEAD.unpack_from(self._map, start - HEAD.size)[4]
        data = np.frombuffer(self._map, np.uint8, length, start).copy()
        if statistics.hash_of(torch.from_numpy(data)) != hashed:
            raise ValueError(f"{self.path}: the bytes at {start} are damaged")
        dense = torch.from_numpy(data).view(dtype)
        made = rebuild(dense, shape, stride)
        can = made.is_floating_point() or made.is_complex()
        return made.detach().requires_grad_() if value["requires_grad"] and can else made
