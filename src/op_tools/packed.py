"""The packed store: one archive for each process, each content once, whole up to its end."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from op_tools import (
    copying,
    diagnostics,
    interception,
    kernels,
    late,
    names,
    outsiders,
    recording,
    results,
    statistics,
    steps,
    store,
)
from op_tools.archive import ABOUT, ALIGN, CALL, HEAD, MAGIC, SUFFIX, VALUES, Archive
from op_tools.arena import Arena
from op_tools.interception import Plan
from op_tools.late import TRUSTED, Record, Sent, Waiting, send
from op_tools.snapshot import Blob, Snapshot, Unchanged, check, ordered
from op_tools.spool import Spool
from op_tools.store import PARTS, TAG, Header, Part

_ZEROS = bytes(ALIGN)
_NUMBERS = {kind: number for number, kind in enumerate(PARTS)}
Place = tuple[int, int]  # where the bytes of a tensor are, and how many
NOWHERE: Place = 0, 0
ABOUT_BYTES = 256  # of the data of the first record
COUNTED = 1 << 30  # bytes of an archive whose calls are counted at its end, which reads all headers


def _aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the native part asks for: no tool sees it, wherever that is at work."""

    @wraps(function)
    def run(*given: Any) -> Any:
        with DisableTorchFunction(), torch.no_grad(), interception.unseen():
            return function(*given)

    return run


class PackedStore:
    """Values are copied into the row of what a thread writes, where they are taken.

    A `path` is written anew; without one, a new file under OP_TOOLS_RESULTS. Unless `sampled`,
    every kernel is seen and told about, and no write to a tensor escapes; with `everything`, every
    call of a step is, if one is.
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
        self._saved = 0
        self._pid = os.getpid()
        self._known: Unchanged[Place] = Unchanged(sampled)
        trusted = TRUSTED if everything else 0
        self._sent = Sent(sampled, trusted)  # of what a device copies on its own
        self._waiting = Waiting()
        self._contents: dict[tuple[int, int], Place] = {}
        self._helper = helper = kernels.helper()  # it has all of that too
        self._packer: Any = helper and helper.Packer(
            sampled, trusted, recording.window, copying.launcher
        )
        self._spool = Spool(path, self._problem, self._packer or self._waiting, _filling)
        self._lock = threading.Lock()
        self._closed = False
        if everything and not outsiders.begin(self._disturbed):
            self._disturbed()
        self._about = {"op_tools": 1, "pid": self._pid, "torch": torch.__version__, "time": stamp}
        self._text(ABOUT, 0, 0, self._description())

    @property
    def whole(self) -> bool:
        """Whether whole parts of calls can be handed over: see `put` and `piece`."""
        return self._packer is not None

    def put(self, kind: str, header: Header, args: tuple[Any, ...], kwargs: Any, more: Any) -> None:
        """A part of a call as it is, its values and then itself. Hot path: natively."""
        if self._is_over():
            return
        about = header if kind == "input" else {"id": header["id"]}
        self._natively("part", _NUMBERS[kind], header["id"], about, args, kwargs, more)
        if self._closed:  # a backward pass after the end
            self._spool.flush()

    def piece(self, value: Any) -> Any:
        """A value as it is now, for a part that is put later."""
        return None if self._is_over() else self._natively("piece", value)

    def taking(self, plan: Plan, heads: Any, problem: Callable[..., None]) -> Any:
        """What takes the calls of one of torch's functions without a line of Python.

        `problem(name, error, results)` hears what was not taken of a call, or of its results.
        """
        assert self._helper is not None  # asked of a `whole` one
        word = names.last(plan.name)
        lists = word.startswith("_foreach_") and word.endswith("_")
        otherwise = partial(interception.run, plan.again())
        given = self._packer, heads, self, problem, plan.name, lists, otherwise
        return self._helper.Packed(*given)

    def watch(self, given: list[Tensor]) -> Any:
        """Where tensors hang in the graph now, for hooks on what a call will make of them."""
        assert self._helper is not None  # asked of a `whole` one
        return self._helper.Watch(given)

    def take(self, tensor: Tensor) -> Blob:
        """The values as they are now, on their way to the file unless they are there already."""
        if self._is_over():
            return Blob(None, 0, NOWHERE)
        if self._packer is not None:
            place = self._natively("take", tensor)
            return Blob(None, place[1], place)
        with self._lock:
            place = self._taken(tensor) if tensor.device.type == "cpu" else self._late(tensor)
        return Blob(None, place[1], place)

    def _is_over(self) -> bool:
        return bool(self.failed) or os.getpid() != self._pid

    # What the native part does, and what it asks for meanwhile.

    def _natively(self, what: str, *given: Any) -> Any:
        packer, spool = self._packer, self._spool
        with self._lock:
            try:
                return getattr(packer, what)(self, spool.last, spool.end, steps.current(), *given)
            finally:
                self._advance(packer.used)

    @_aside
    def _room(self, used: int, need: int, device: str) -> tuple[Arena, int]:
        self._advance(used)
        return self._spool.room(need, device)[0], self._spool.end

    @_aside
    def _odd(self, used: int, tensor: Tensor) -> tuple[Arena, int, Place]:
        """A tensor whose values are not what its memory holds."""
        self._advance(used)
        place = self._taken(tensor)
        return self._spool.last, self._spool.end, place

    @_aside
    def _plain(self, value: Any) -> Any:
        return store.encode(value, lambda tensor: tensor)

    def _quoted(self, text: str) -> str:
        return json.dumps(text)

    def _capturing(self, device: str) -> Callable[[], bool]:
        return late.captures(device)

    def _refuse(self, device: str) -> None:
        late.check_captured(device)

    # Without it.

    def _taken(self, tensor: Tensor) -> Place:
        """The values by torch's own copy."""
        check(tensor)
        key, place = self._known.find(tensor)
        flat, _ = ordered(tensor)
        size = flat.numel() * flat.element_size()
        if place is not None or not size:
            self._saved += size
            return place or NOWHERE
        arena, at = self._spool.room(_padded(size))
        raw = arena.memory[at + HEAD.size : at + HEAD.size + size]
        dense = raw.view(flat.dtype).view(flat.shape).copy_(flat)
        place = self._values(arena, at, size, statistics.hash_of(raw))
        self._known.keep(key, tensor, place, dense)
        return place

    def _late(self, tensor: Tensor) -> Place:
        """The same, by a copy that the device makes on its own. Hot path.

        What its memory holds is written once; equal contents of other memory are not looked for.
        """
        check(tensor)
        key, place = self._sent.find(tensor)
        if place is not None:
            self._saved += place[1]
            return place
        flat, _ = ordered(tensor)
        size = flat.numel() * flat.element_size()
        if not size:
            return NOWHERE
        arena, at = self._spool.room(_padded(size), tensor.device.type)
        start = at + HEAD.size
        raw = arena.memory[start : start + size]
        stream = send(raw, flat) if arena.locked else None
        if stream is None:
            raw.view(flat.dtype).view(flat.shape).copy_(flat)
        place = self._spool.end + HEAD.size, size
        entry = self._sent.keep(key, tensor, place)
        record = Record(arena, at, size, flat.element_size(), stream, entry)
        self._waiting.add(self._spool.end, record)
        self._record(arena, at, (VALUES, 0, size, 0, 0))
        return place

    def _values(self, arena: Arena, at: int, size: int, hashed: int) -> Place:
        """The record of values that lie in the room already; one with the same takes its place."""
        place = self._contents.get((hashed, size))
        if place is not None:
            self._saved += size
            return place
        place = self._spool.end + HEAD.size, size
        self._record(arena, at, (VALUES, 0, size, hashed, 0))
        self._contents[hashed, size] = place
        return place

    def forget(self, tensors: Sequence[Tensor]) -> None:
        """Tensors were written."""
        for tensor in tensors:
            self._known.forget(tensor)
        if self._packer is not None:
            self._packer.forget(tensors)
        else:
            for tensor in tensors:
                self._sent.forget(tensor)

    def forget_all(self) -> None:
        """Any may be written unseen, on a device: what the host has is looked at each time."""
        if self._packer is not None:
            self._packer.forget_all()
        else:
            self._sent.forget_all()

    def _disturbed(self) -> None:
        """The same from now on, between two calls: values are looked at before they are known."""
        if self._packer is not None:
            self._packer.trust_nobody()
        else:
            self._known.trust_nobody()
            self._sent.trust_nobody()

    def write(self, part: Part) -> None:
        """A part of a call whose tensors were taken, behind the values in it."""
        if self._is_over():
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
        self._text(CALL, _NUMBERS[part.kind], header["id"], text)
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
        self._advance(whole)

    def _spend(self) -> None:
        size, self._packer.unspent = self._packer.unspent, 0
        results.budget.spend(size)

    def _advance(self, size: int) -> None:
        if size:
            self._spool.advance(size)
            results.budget.spend(size)

    def _description(self, **totals: int) -> bytes:
        """The data of the first record, padded with spaces: `_finish` rewrites it in place."""
        return json.dumps({**self._about, **totals}).encode().ljust(ABOUT_BYTES)

    def _finish(self) -> None:
        """Writes the totals into the first record, for a reader of a file that was cut."""
        totals = {"bytes": self._spool.end}
        if self._spool.end <= COUNTED:
            held = Archive(self.place)
            totals.update(calls=len(held), parts=held.parts_read)
        data = self._description(**totals)
        head = HEAD.pack(MAGIC, ABOUT, 0, len(data), zlib.crc32(data), 0)
        with self.place.open("r+b") as file:
            file.write(head + data)

    def close(self) -> None:
        """Waits until everything is written."""
        outsiders.end(self._disturbed)
        if os.getpid() == self._pid:
            already, self._closed = self._closed, True
            self._spool.close()
            if not already and not self.failed:
                self._finish()
            if self._packer is not None:
                self._spend()
                self._packer.release()

    @property
    def failed(self) -> str:
        return self._spool.failed

    def _problem(self, error: Exception) -> None:
        if self._packer is not None:
            self._packer.over = True
        diagnostics.add("OpCapture", self.place.name, error)
        os.truncate(self.place, Archive(self.place).whole)

    @property
    def saved(self) -> int:
        """Bytes that were not written again."""
        return self._saved + (self._packer.saved if self._packer is not None else 0)

    @property  # the last of all: it hides the type of the same name
    def bytes(self) -> int:
        """Of the file, once what waits is written."""
        return self._spool.end


def _padded(size: int) -> int:
    """The bytes of a record of so many."""
    return HEAD.size + size + -size % ALIGN


def _filling(size: int) -> bytes:
    """A record of so many bytes that nothing refers to."""
    return HEAD.pack(MAGIC, VALUES, 0, size - HEAD.size, 0, 0).ljust(size, b"\0") if size else b""


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
