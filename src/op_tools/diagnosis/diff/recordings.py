# SPDX-License-Identifier: Apache-2.0
"""Recorded runs in any format: packed archives, folders of calls, lines of statistics.

`read(path)` returns the calls of each rank in order, and reports what cannot be read. Tensors are
loaded from the file when they are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.capture import (
    SUFFIX,
    TAG,
    Archive,
    Read,
    Recorded,
    find_folders,
    read_folder,
)
from op_tools.core import output_paths
from op_tools.core.call import tensors
from op_tools.tensors import snapshot

_RANK = re.compile(r"-rank(\d+)of(\d+)")


class RecordingError(DeeplinkError):
    """The path is no recorded run."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in a run: its statistics, and the place of its values."""

    dtype: str
    shape: tuple[int, ...]
    hash: str = ""  # of its bytes; "": unknown
    norm: float | None = None
    numbers: tuple[float | None, float | None, float | None] = (None, None, None)  # min, max, mean
    nonfinite: int = 0
    stride: tuple[int, ...] = ()
    bytes: Callable[[], NDArray[np.uint8]] | None = None  # in the order of memory, not copied

    def tensor(self) -> Tensor | None:
        """A copy of the values, if they were recorded."""
        if self.bytes is None:
            return None
        dtype: torch.dtype = getattr(torch, self.dtype)
        raw = torch.from_numpy(self.bytes().copy())
        if not raw.numel():
            return torch.empty(self.shape, dtype=dtype)
        return snapshot.rebuild(raw.view(dtype), self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class Entry:
    """A call in a run. `load` returns the whole call, if its tensors were captured."""

    id: int
    op: str
    direction: str
    step: int
    module: str
    site: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]  # followed by the arguments that it wrote
    rank: int = 0
    time: str = ""
    device: str = ""
    load: Callable[[], Recorded] | None = None
    group: tuple[int, ...] = ()  # the ranks of a collective; empty: all, or unknown
    awaited: tuple[Read, ...] = ()  # its arguments that are results of collectives before it


@dataclass
class Recording:
    """The calls of a run, by rank."""

    path: Path
    stores: list[str] = field(default_factory=list)
    ranks: dict[int, list[Entry]] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # that it was made on, with versions

    @property
    def calls(self) -> int:
        return sum(map(len, self.ranks.values()))


def read(path: str | Path) -> Recording:
    """Read a file or a folder of OpCapture, of one process or of many ranks."""
    root = Path(path)
    if not root.exists():
        raise RecordingError(
            _("there is nothing at {root}.").format(root=root),
            _("give the folder that `deeplink run --capture -o DIR` wrote."),
        )
    made = Recording(root, devices=output_paths.devices(root))
    found: list[tuple[int | None, list[Entry]]] = []
    worlds: set[int] = set()
    for file in _files(root):
        try:
            entries = _archived(file, made) if file.suffix == SUFFIX else _lines(file, made)
        except (OSError, ValueError) as error:
            made.problems.append(f"{file}: {error}")
            continue
        kind = "packed" if file.suffix == SUFFIX else "statistics"
        made.stores += [kind] if kind not in made.stores else []
        match = _RANK.search(file.name)
        found.append((int(match[1]) if match else None, entries))
        worlds |= {int(match[2])} if match else set()
    found += _foldered(root, made)
    if not any(entries for _, entries in found):
        reason = f" ({made.problems[0]})" if made.problems else ""
        raise RecordingError(
            _("no recorded call at {root}{reason}.").format(root=root, reason=reason),
            _(
                "record one with: deeplink run --capture --first 0 --level aten train.py, and "
                "OP_CAPTURE_FORMAT=packed or OP_CAPTURE_MODE=statistics."
            ),
        )
    _place(made, found, max(worlds, default=0))
    return made


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    lines = [file for file in root.rglob("*.jsonl") if file.name.startswith("op_statistics_")]
    return sorted([*root.rglob(f"*{SUFFIX}"), *lines])


def _place(made: Recording, found: list[tuple[int | None, list[Entry]]], world: int) -> None:
    """Assign ranks to the processes: by their files, else in order."""
    free = iter(rank for rank in range(len(found) + world) if rank not in {r for r, _ in found})
    for rank, entries in found:
        if entries:
            own = next(free) if rank is None else rank
            known = made.ranks.setdefault(own, [])
            known += [_with_rank(entry, own) for entry in entries]
    made.missing = [rank for rank in range(world) if rank not in made.ranks]


def _with_rank(entry: Entry, rank: int) -> Entry:
    return replace(entry, rank=rank) if rank else entry


# Statistics.


def _lines(file: Path, made: Recording) -> list[Entry]:
    found, known = [], Produced()
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                made.problems.append(
                    _("{file}: its last line, {number}, is not whole").format(
                        file=file, number=number
                    )
                )
                break
            row = json.loads(line)
            known.resolve(row)
            if "outputs" in row:
                wrote = row.get("mutated", {})
                found.append(_entry(row, row["inputs"], [*row["outputs"], *wrote.values()]))
    return found


class Produced:
    """Resolves references to statistics in earlier lines.

    A reference `[call, list, place]` is `same_as` for equal values. A view of values has no
    statistics: its hash is derived from that of the values, so that views of equal values are
    equal.
    """

    _LISTS = ("inputs", "outputs", "mutated", "grad_inputs", "grad_outputs")

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, str, int], dict[str, Any]] = {}

    def resolve(self, row: dict[str, Any]) -> None:
        """Add the statistics to the tensors of a line with references."""
        for name in self._LISTS:
            tensors = row.get(name, ())
            pairs = tensors.items() if isinstance(tensors, dict) else enumerate(tensors)
            for place, tensor in pairs:
                if tensor is None:
                    continue
                if "same_as" in tensor:
                    source = self._tensors.get(tuple(tensor["same_as"]), {})
                    tensor.update({k: v for k, v in source.items() if k not in tensor})
                elif "view_of" in tensor:
                    source = self._tensors.get(tuple(tensor["view_of"]), {})
                    tensor["hash"] = f"view {source['hash']}" if source.get("hash") else ""
                self._tensors[row["id"], name, int(place)] = tensor


def _entry(row: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> Entry:
    return Entry(
        row["id"],
        row["op"],
        row["direction"],
        row["step"],
        row["module"],
        row["site"],
        tuple(map(_statistics, inputs)),
        tuple(map(_statistics, outputs)),
    )


def _statistics(row: dict[str, Any]) -> Value:
    return Value(
        row["dtype"],
        tuple(row["shape"]),
        row.get("hash", ""),
        row.get("norm"),
        (row.get("min"), row.get("max"), row.get("mean")),
        row.get("nonfinite", 0),
    )


# Archives.


def _archived(file: Path, made: Recording) -> list[Entry]:
    archive = Archive(file)
    if archive.problem:
        made.problems.append(f"{file}: {archive.problem}")
    return list(_calls(archive))


def _calls(archive: Archive) -> Iterator[Entry]:
    for call in archive:
        parts = archive.parts(call)
        if not parts.keys() >= {"input", "output"}:
            continue  # a call that did not end, or is damaged
        given, made = parts["input"], parts["output"]
        wrote = list(made.get("mutated", {}).values())
        inputs = tuple(_stored(archive, [given["args"], given["kwargs"]]))
        outputs = tuple(_stored(archive, [made["args"], wrote]))
        yield _of_header(given["call"], inputs, outputs, _loader(archive, call))


def _loader(archive: Archive, call: int) -> Callable[[], Recorded]:
    return lambda: archive.load(call)


def _of_header(
    header: dict[str, Any],
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
    load: Callable[[], Recorded],
) -> Entry:
    return Entry(
        header["id"],
        header["name"],
        header.get("direction", "forward"),
        header.get("step", 0),
        header.get("module", ""),
        header.get("site", ""),
        inputs,
        outputs,
        time=header.get("time", ""),
        device=header.get("device", ""),
        load=load,
        group=tuple(header.get("group", ())),
        awaited=tuple(map(tuple, header.get("awaited", ()))),
    )


def _stored(archive: Archive, value: Any) -> Iterator[Value]:
    if isinstance(value, list):
        for item in value:
            yield from _stored(archive, item)
    elif isinstance(value, dict):
        if value.get(TAG) == "tensor":
            yield _of_archive(archive, value["value"])
        else:
            yield from _stored(archive, list(value.values()))


def _of_archive(archive: Archive, about: dict[str, Any]) -> Value:
    start, length = about["at"]
    return Value(
        about["dtype"],
        tuple(about["shape"]),
        f"{archive.hash_at(start):016x}" if length else "0",
        stride=tuple(about["stride"]),
        bytes=lambda: archive.bytes_at(start, length),
    )


# Folders.


def _foldered(root: Path, made: Recording) -> list[tuple[int | None, list[Entry]]]:
    by_process: dict[str, list[Entry]] = {}
    for folder in find_folders(root) if root.is_dir() else ():
        if "autocompare" in folder.parts:
            continue  # both sides of a call that failed a comparison
        try:
            recorded = read_folder(folder)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            made.problems.append(f"{folder}: {error}")
            continue
        entry = _of_header(
            recorded.header,
            tuple(map(_held, tensors(recorded.args, recorded.kwargs))),
            tuple(map(_held, tensors(recorded.output, list(recorded.mutated.values())))),
            _reader(folder),
        )
        by_process.setdefault(folder.parent.parent.name, []).append(entry)
    if by_process and "folders" not in made.stores:
        made.stores.append("folders")
    ordered = [sorted(entries, key=lambda e: e.id) for _, entries in sorted(by_process.items())]
    return [(None, entries) for entries in ordered]


def _reader(folder: Path) -> Callable[[], Recorded]:
    return lambda: read_folder(folder)


def _held(tensor: Tensor) -> Value:
    dense, _ = snapshot.ordered(tensor.detach())
    flat = dense.contiguous().reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Value(dtype, tuple(tensor.shape), stride=tuple(tensor.stride()), bytes=lambda: flat)
