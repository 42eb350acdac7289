"""The packed store: one archive for each process, each content once, whole up to its end."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools import diagnostics, kernels, recording, results, statistics
from op_tools.archive import ABOUT, ALIGN, CALL, HEAD, MAGIC, SUFFIX, VALUES, Archive
from op_tools.arena import Arena
from op_tools.late import TRUSTED, Record, Sent, send, settle
from op_tools.snapshot import Blob, Snapshot, Unchanged, check, ordered
from op_tools.spool import Spool
from op_tools.store import PARTS, TAG, Part

_ZEROS = bytes(ALIGN)
Place = tuple[int, int]  # where the bytes of a tensor are, and how many
NOWHERE: Place = 0, 0


class PackedStore:
    """Values are copied into the row of what a thread writes, where they are taken.

    A `path` is written anew; without one, a new file under OP_TOOLS_RESULTS. Unless `sampled`,
    every kernel is seen and told about, and no write to a tensor escapes; with `everything`, every
    call of the program is.
    """

    native = False

    def __init__(
        self, path: Path | None = None, sampled: bool = True, everything: bool = False
    ) -> None:
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        if path is None:
            folder = results.folder("op_capture_results")
            path = _create(folder, f"packed-{results.owner(folder)}-{stamp}{results.rank()}")
        else:
            path.write_bytes(b"")
        self.place = path
        self.files = 1
        self.saved = 0  # bytes that were not written again
        self._pid = os.getpid()
        self._contents: dict[tuple[int, int], Place] = {}
        helper = kernels.helper()
        self._keeper = None if helper is None else helper.Keeper(sampled, recording.window)
        self._known: Unchanged[Place] = Unchanged(sampled)  # of what the keeper does not reach
        self._far: set[str] = set()  # kinds of devices whose memory the host does not see
        trusted = TRUSTED if everything else 0
        self._sent = Sent(sampled, trusted)  # of what a device copies on its own
        self._spool = Spool(path, self._problem, settle)
        self._lock = threading.Lock()
        self._closed = False
        about = {"op_tools": 1, "pid": self._pid, "torch": torch.__version__, "time": stamp}
        self._text(ABOUT, 0, 0, json.dumps(about).encode())

    def take(self, tensor: Tensor) -> Blob:
        """The values as they are now, on their way to the file unless they are there already."""
        if self.failed or os.getpid() != self._pid:
            return Blob(None, 0, NOWHERE)
        kind = tensor.device.type
        if kind in self._far:
            return self._late(tensor)
        keeper = self._keeper
        found = keeper.find(tensor) if keeper is not None else None
        if keeper is None or found is None:
            if kind == "cpu":
                return self._taken(tensor)
            if keeper is None or recording.window(kind, tensor.device.index or 0) is None:
                self._far.add(kind)
            return self._late(tensor)
        size, start = found
        if start is not None:
            self.saved += size
            return Blob(None, size, (start, size))
        if not size:
            return Blob(None, 0, NOWHERE)
        with self._lock:
            arena, at = self._spool.room(_padded(size))
            hashed = keeper.copy(tensor, arena.address + at + HEAD.size)
            place = self._values(arena, at, size, hashed)
        keeper.keep(tensor, *place)
        return Blob(None, size, place)

    def _taken(self, tensor: Tensor) -> Blob:
        """The same, by torch's own copy."""
        check(tensor)
        key, place = self._known.find(tensor)
        flat, _ = ordered(tensor)
        size = flat.numel() * flat.element_size()
        if place is not None or not size:
            self.saved += size
            return Blob(None, size, place or NOWHERE)
        with self._lock:
            arena, at = self._spool.room(_padded(size))
            raw = arena.memory[at + HEAD.size : at + HEAD.size + size]
            dense = raw.view(flat.dtype).view(flat.shape).copy_(flat)
            place = self._values(arena, at, size, statistics.hash_of(raw))
            self._known.keep(key, tensor, place, dense)
        return Blob(None, size, place)

    def _late(self, tensor: Tensor) -> Blob:
        """The same, by a copy that the device makes on its own. Hot path.

        What its memory holds is written once; equal contents of other memory are not looked for.
        """
        check(tensor)
        key, place = self._sent.find(tensor)
        if place is not None:
            self.saved += place[1]
            return Blob(None, place[1], place)
        flat, _ = ordered(tensor)
        size = flat.numel() * flat.element_size()
        if not size:
            return Blob(None, 0, NOWHERE)
        with self._lock:
            arena, at = self._spool.room(_padded(size), tensor.device.type)
            start = at + HEAD.size
            raw = arena.memory[start : start + size]
            stream = send(raw, flat) if arena.locked else None
            if stream is None:
                raw.view(flat.dtype).view(flat.shape).copy_(flat)
            place = self._spool.end + HEAD.size, size
            entry = self._sent.keep(key, tensor, place)
            self._spool.later(Record(arena, at, size, flat.element_size(), stream, entry))
            self._record(arena, at, (VALUES, 0, size, 0, 0))
        return Blob(None, size, place)

    def _values(self, arena: Arena, at: int, size: int, hashed: int) -> Place:
        """The record of values that lie in the room already; one with the same takes its place."""
        place = self._contents.get((hashed, size))
        if place is not None:
            self.saved += size
            return place
        place = self._spool.end + HEAD.size, size
        self._record(arena, at, (VALUES, 0, size, hashed, 0))
        self._contents[hashed, size] = place
        return place

    def forget(self, tensor: Tensor) -> None:
        """A tensor was written."""
        self._known.forget(tensor)
        self._sent.forget(tensor)
        if self._keeper is not None:
            self._keeper.forget(tensor)

    def write(self, part: Part) -> None:
        """A part of a call, behind the values in it."""
        if self.failed or os.getpid() != self._pid:
            return
        header = part.header
        numbers: dict[int, int] = {}

        def leaf(taken: Snapshot) -> dict[str, Any]:
            return _tensor(taken, numbers.setdefault(id(taken), len(numbers)))

        about = {
            "call": header if part.kind == "input" else {"id": header["id"]},
            "args": part.args,
            "kwargs": part.kwargs,
            **part.more,
        }
        text = json.dumps(about, separators=(",", ":"), default=leaf).encode()
        self._text(CALL, PARTS.index(part.kind), header["id"], text)
        if self._closed:  # a backward pass after the end
            self._spool.flush()

    def _text(self, kind: int, part: int, call: int, data: bytes) -> None:
        with self._lock:
            arena, at = self._spool.room(_padded(len(data)))
            start = at + HEAD.size
            arena.view[start : start + len(data)] = data
            # of a short text: cheaper than the hash
            self._record(arena, at, (kind, part, len(data), zlib.crc32(data), call))

    def _record(self, arena: Arena, at: int, head: tuple[int, ...]) -> None:
        """Ends a record whose data lies in the room already."""
        HEAD.pack_into(arena.view, at, MAGIC, *head)
        whole, end = _padded(head[2]), at + HEAD.size + head[2]
        arena.view[end : at + whole] = _ZEROS[: at + whole - end]
        self._spool.advance(whole)
        results.budget.spend(whole)

    def close(self) -> None:
        """Waits until everything is written."""
        if os.getpid() == self._pid:
            self._closed = True
            self._spool.close()

    @property
    def failed(self) -> str:
        return self._spool.failed

    def _problem(self, error: Exception) -> None:
        diagnostics.add("OpCapture", self.place.name, error)
        os.truncate(self.place, Archive(self.place).whole)

    @property  # the last of all: it hides the type of the same name
    def bytes(self) -> int:
        """Of the file, once what waits is written."""
        return self._spool.end


def _padded(size: int) -> int:
    """The bytes of a record of so many."""
    return HEAD.size + size + -size % ALIGN


def _tensor(taken: Snapshot, number: int) -> dict[str, Any]:
    value = {
        "at": taken.blob.place,
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
