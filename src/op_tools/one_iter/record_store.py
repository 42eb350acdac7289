# SPDX-License-Identifier: Apache-2.0
"""The record of an iteration on disk: an archive for each rank, with its calls by name.

A call has its inputs (`inputs`; of a model also `parameters` and `buffers`), its results, and the
gradients of both. Nothing in the file can run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink import identity, settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.capture import SUFFIX, Archive, PackedStore, Part, Recorded, encode
from op_tools.core.gradients import Gradients
from op_tools.tensors.snapshot import once

VERSION = 1
Key = tuple[str, str, int]  # kind, path, number
ABOUT = 0  # the id of the description of the record


class OneIterError(DeeplinkError):
    """A record that is damaged, or that is of another program."""


def file_of(folder: Path) -> Path:
    """The archive of this rank."""
    return folder / f"rank-{settings.rank()}{SUFFIX}"


@dataclass(frozen=True)
class Entry:
    """The identity of a call. `children` are the ids of the modules that it called, in order."""

    id: int
    kind: str  # "module", "operator" or "optimizer"
    path: str
    number: int  # of the calls of this path, from 0
    name: str  # of its class, or of the operator
    parent: int = 0
    children: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()  # those whose gradients follow those of the inputs
    site: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.path, self.number


class Writer:
    """Writes in the background. The file gets its final name when it is complete."""

    def __init__(self, folder: Path) -> None:
        self.place = file_of(folder)
        self._partial = self.place.with_suffix(f".{os.getpid()}.partial")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._store = PackedStore(self._partial)
        except OSError as error:
            reason = error.strerror or error
            raise OneIterError(
                _("{folder} cannot be written: {reason}.").format(folder=folder, reason=reason),
                _("name another folder with -o DIR."),
            ) from None
        self.calls = 0

    def about(self, facts: dict[str, Any]) -> None:
        """Write the description of the record, before any call."""
        header = {"id": ABOUT, "name": "one_iter", "version": VERSION}
        self._write("input", header, (), facts)

    def call(self, entry: Entry, given: dict[str, Any], made: dict[str, Any]) -> None:
        """Write a finished call, whose inputs and results are snapshots."""
        header = {**vars(entry), "level": entry.kind, "module": entry.path}
        self._store.write(Part("input", header, (), given))
        self._store.write(Part("output", header, (made,), {}))
        self.calls += 1

    def gradients(self, entry: Entry, found: Gradients) -> None:
        """Write the gradients of a call's results and arguments."""
        header = {"id": entry.id, "name": entry.name}
        for kind, side in (("grad_inputs", found.inputs), ("grad_outputs", found.outputs)):
            more = {"complete": found.complete}
            self._store.write(Part(kind, header, tuple(side), {}, more))

    def take(self, value: Any) -> Any:
        """Encode a current value, with snapshots instead of tensors."""
        return encode(value, once(self._store.take))

    def _write(self, kind: str, header: dict[str, Any], args: Sequence[Any], kwargs: Any) -> None:
        self._store.write(Part(kind, header, self.take(tuple(args)), self.take(kwargs)))

    def close(self, whole: bool) -> int:
        """Close the file, and return its size; an incomplete file is deleted."""
        self._store.close()
        if self._store.failed:
            raise OneIterError(
                _("{place} could not be written: {failed}.").format(
                    place=self.place, failed=self._store.failed
                )
            )
        if whole:
            os.replace(self._partial, self.place)
        else:
            self._partial.unlink()
        return self._store.bytes


class Book:
    """A record for reading: its calls, and each call with its tensors."""

    def __init__(self, folder: Path) -> None:
        self.place = file_of(folder)
        if not self.place.is_file():
            raise OneIterError(
                _("no record of rank {rank} at {folder}.").format(
                    rank=settings.rank(), folder=folder
                ),
                _("make one first: deeplink one-iter record -o DIR train.py …"),
            )
        try:
            self._archive = Archive(self.place)
            self.about = self._archive.load(ABOUT).kwargs
        except (ValueError, KeyError) as error:
            raise OneIterError(
                _("{place} is no record of an iteration: {error}.").format(
                    place=self.place, error=error
                )
            ) from None
        if self._archive.problem:
            raise OneIterError(
                _("{place} cannot be compared with: {problem}.").format(
                    place=self.place, problem=self._archive.problem
                ),
                _("record it once more: deeplink one-iter record -o DIR train.py …"),
            )
        headers = (self._archive.header(call) for call in self._archive if call != ABOUT)
        self.entries = {header["id"]: _entry(header) for header in headers}
        self.by_key = {entry.key: entry for entry in self.entries.values()}

    @property
    def identity(self) -> identity.Identity | None:
        """The device of the record; None: an older record without it."""
        return identity.read(self.about)

    def load(self, entry: Entry) -> Recorded:
        """The call with its tensors, on the CPU."""
        return self._archive.load(entry.id)


def _entry(header: dict[str, Any]) -> Entry:
    plain: dict[str, Any] = {
        name: header[name] for name in ("id", "kind", "path", "number", "name", "parent")
    }
    listed: dict[str, Any] = {name: tuple(header[name]) for name in ("children", "parameters")}
    return Entry(**plain, **listed, site=header["site"])
