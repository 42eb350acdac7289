# SPDX-License-Identifier: Apache-2.0
"""The format of an archive of captured calls, and its reader.

The file is a sequence of records: a header of 64 bytes, then its data, padded to 64 bytes. A header
holds the length and a checksum of the data, so a reader finds damage and the next whole record.
A record is the values of a tensor (raw bytes) or a part of a call (JSON). Nothing in it can run.
The first record describes the file. When the file is closed, its totals are written there.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from op_tools.capture import encoding
from op_tools.capture.encoding import PARTS, Recorded
from op_tools.tensors import statistics
from op_tools.tensors.snapshot import rebuild

SUFFIX = ".opcap"
MAGIC = b"OPC1"
HEADER = struct.Struct("<4sBBxxQQQ32x")  # magic, kind, part, length, hash, call
ABOUT, VALUES, CALL = 1, 2, 3  # kinds
ALIGN = 64


@dataclass(frozen=True)
class _Record:
    part: int
    start: int
    length: int


class Archive:
    """An open archive. Damaged calls are left out; `problem` describes the damage."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            self._map: Any = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._size else b""
            )
        self._calls: OrderedDict[int, list[_Record]] = OrderedDict()
        self.parts_read = 0  # intact parts of calls
        self.damaged: set[int] = set()  # ids of calls that are left out
        self.lost = 0  # bytes outside of intact records
        self.whole = 0  # bytes before the first damaged byte
        self._scan()

    def _scan(self) -> None:
        at, header = 0, self._header_at(0)
        if header is None or header[0] != ABOUT:
            raise ValueError(f"{self.path} is no archive of captured calls")
        while at < self._size:
            if header is None:
                self.whole = self.whole if self.lost else at
                damaged, (at, header) = at, self._next(at)
                self.lost += at - damaged
                continue
            kind, part, length, hashed, call = header
            if kind == CALL:
                record = _Record(part, at + HEADER.size, length)
                if part < len(PARTS) and self._crc(record.start, length) == hashed:
                    self._calls.setdefault(call, []).append(record)
                    self.parts_read += 1
                else:
                    self.damaged.add(call)
            at = min(self._size, at + HEADER.size + length + -length % ALIGN)
            header = self._header_at(at)
        self.whole = self.whole if self.lost else at
        for call in [call for call, records in self._calls.items() if records[0].part]:
            self.damaged.add(call)  # its arguments are damaged
        for call in self.damaged:
            self._calls.pop(call, None)

    def _crc(self, start: int, length: int) -> int:
        return zlib.crc32(memoryview(self._map)[start : start + length])

    def _header_at(self, at: int) -> tuple[int, int, int, int, int] | None:
        """Kind, part, length, hash and call of the record at a place; None: no intact record."""
        if at + HEADER.size > self._size:
            return None
        magic, kind, part, length, hashed, call = HEADER.unpack_from(self._map, at)
        valid = magic == MAGIC and kind in (ABOUT, VALUES, CALL)
        fits = at + HEADER.size + length <= self._size
        return (kind, part, length, hashed, call) if valid and fits else None

    def _next(self, at: int) -> tuple[int, tuple[int, int, int, int, int] | None]:
        """Place and header of the first intact record after damaged bytes, else the file's end."""
        while (at := self._map.find(MAGIC, at + 1)) != -1:
            header = self._header_at(at) if at % ALIGN == 0 else None
            if header is not None:
                return at, header
        return self._size, None

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description of the file; a closed file has `bytes`, `calls` and `parts`."""
        header = self._header_at(0)
        assert header is not None  # checked by _scan
        start, length = HEADER.size, header[2]
        if self._crc(start, length) != header[3]:
            return {}
        about: dict[str, Any] = json.loads(self._map[start : start + length])
        return about

    @property
    def problem(self) -> str:
        """A description of the damage; empty: the whole file can be read."""
        cut = max(0, self.about.get("bytes", 0) - self._size)
        calls, parts = self.about.get("calls"), self.about.get("parts", 0)
        missing = len(self.damaged) if calls is None else max(0, calls - len(self))
        where = []
        if self.lost:
            where.append(f"{self.lost} bytes from {self.whole} on belong to no whole record")
        if cut:
            where.append(f"the last {cut} of {cut + self._size} bytes are gone")
        if missing:
            text = f"{missing} of {missing + len(self)} calls are missing or damaged"
        elif self.parts_read < parts:
            count = parts - self.parts_read
            text = f"{count} results or gradients of its calls are missing or damaged"
        elif where:
            text = "it is not whole"
        else:
            return ""
        return f"{text} ({'; '.join(where)})" if where else text

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[int]:
        """The ids of the calls, in their order."""
        return iter(self._calls)

    def header(self, call: int) -> encoding.Header:
        """The header of a call: name, step, module, line, …"""
        header: encoding.Header = self._json(self._calls[call][0])["call"]
        return header

    def parts(self, call: int) -> dict[str, dict[str, Any]]:
        """The encoded parts of a call by kind; `at` of a tensor is the place of its values."""
        return {PARTS[record.part]: self._json(record) for record in self._calls[call]}

    def hash_at(self, start: int) -> int:
        """The hash of the values that begin at a place."""
        hashed: int = HEADER.unpack_from(self._map, start - HEADER.size)[4]
        return hashed

    def bytes_at(self, start: int, length: int) -> NDArray[np.uint8]:
        """The values that begin at a place, as read-only memory of the file."""
        return np.frombuffer(self._map, np.uint8, length, start)

    def results(self, call: int) -> list[tuple[str, tuple[int, ...]]]:
        """Types and shapes of a call's results, without their values."""
        return [
            (leaf["dtype"], tuple(leaf["shape"]))
            for record in self._calls[call]
            if PARTS[record.part] == "output"
            for leaf in _leaves(self._json(record).get("args"))
        ]

    def load(self, call: int) -> Recorded:
        """Read a call with copies of its tensors; ValueError when bytes are damaged."""
        parts = self.parts(call)
        tensors: dict[int, Tensor] = {}  # by the number of the argument: one may occur twice

        def leaf(value: dict[str, Any]) -> Tensor:
            if value["number"] not in tensors:
                tensors[value["number"]] = self._tensor(value)
            return tensors[value["number"]]

        header = parts["input"].pop("call")
        decoded = {
            kind: encoding.decode(part, leaf if kind == "input" else self._tensor)
            for kind, part in parts.items()
        }
        return encoding.recorded(header, decoded)

    def _json(self, record: _Record) -> dict[str, Any]:
        text = self._map[record.start : record.start + record.length]
        parsed: dict[str, Any] = json.loads(text)
        return parsed

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        start, length = value["at"]
        dtype = getattr(torch, value["dtype"])
        shape, stride = tuple(value["shape"]), tuple(value["stride"])
        if not length:
            return torch.empty_strided(shape, stride, dtype=dtype)
        data = self.bytes_at(start, length).copy()
        if statistics.hash_of(torch.from_numpy(data)) != self.hash_at(start):
            raise ValueError(f"{self.path}: the bytes at {start} are damaged")
        tensor = rebuild(torch.from_numpy(data).view(dtype), shape, stride)
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        wants_grad = value["requires_grad"] and differentiable
        return tensor.detach().requires_grad_() if wants_grad else tensor


def _leaves(value: Any) -> Iterator[dict[str, Any]]:
    """The descriptions of the tensors in an encoded value."""
    if isinstance(value, dict):
        if "dtype" in value and "shape" in value:
            yield value
        else:
            for inner in value.values():
                yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
