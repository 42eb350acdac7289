# SPDX-License-Identifier: Apache-2.0
"""Lines on disk within a limit: two files, written alternately, and copies of both after an event.

Each line is passed to the system at once, so that it is on disk after kill -9.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = 8  # of the limit: one for each of the two files, the rest for the copies


class Ring:
    """Writes lines, and deletes the oldest. A full disk loses lines, which is reported."""

    def __init__(self, stem: Path, limit: int) -> None:
        self.stem, self.limit = stem, limit
        self.failed = ""
        self.lost = 0  # lines
        self.copies: list[Path] = []
        self._turn = self._size = self._copied = 0
        self._pid = os.getpid()
        self._file: int | None = None

    @property
    def own(self) -> bool:
        """Whether this is the process that made the object, not a forked child."""
        return os.getpid() == self._pid

    @property
    def paths(self) -> list[Path]:
        """The existing files, the older first."""
        both = [self._path(1 - self._turn), self._path(self._turn)]
        return [path for path in both if path.exists()]

    def _path(self, turn: int) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{turn}.jsonl")

    def add(self, line: dict[str, Any]) -> None:
        """Write a line."""
        self._append(_text(line))

    def add_all(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write several lines, in one system call if they fit."""
        texts = [_text(line) for line in lines]
        whole = b"".join(texts)
        for data in [whole] if len(whole) <= self.limit // PARTS else texts:
            self._append(data)

    def _append(self, data: bytes) -> None:
        if not data or not self.own:
            return
        if len(data) > self.limit // PARTS:
            self.lost += 1
            return
        try:
            if self._file is None or self._size + len(data) > self.limit // PARTS:
                self._next()
            assert self._file is not None  # it was just opened
            written = os.write(self._file, data)
            self._size += written
            if written < len(data):
                raise OSError(28, "No space left on device")
        except OSError as error:
            self.failed = self.failed or f"{error.strerror or error}"
            self.lost += 1

    def _next(self) -> None:
        """Empty the other file, and write to it."""
        if self._file is not None:
            os.close(self._file)
            self._turn = 1 - self._turn
        self._size = 0
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND
        self._file = os.open(self._path(self._turn), flags, 0o644)

    def keep(self, word: str) -> Path | None:
        """Copy all lines, so that later lines do not delete them; None: no space left."""
        found = b"".join(path.read_bytes() for path in self.paths)
        room = self.limit * (PARTS - 2) // PARTS
        if self.failed or self._copied + len(found) > room:
            return None
        place = self.stem.with_name(f"{self.stem.name}_{word}.jsonl")
        try:
            place.write_bytes(found)
        except OSError as error:
            self.failed = self.failed or f"{error.strerror or error}"
            return None
        self._copied += len(found)
        self.copies.append(place)
        return place

    def close(self) -> None:
        if self._file is not None and self.own:
            os.close(self._file)
        self._file = None


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
