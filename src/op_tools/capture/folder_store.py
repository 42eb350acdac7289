# SPDX-License-Identifier: Apache-2.0
"""The classic store: a folder for each call with four files, and a JSON description of each file.

<op>/<pid>/<id>/<YYYY-MM-DD-HH-MM-SS>/{input,output,grad_inputs,grad_outputs}.pth + .pth.json
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.capture import encoding
from op_tools.capture.encoding import PARTS, TAG, Part, Recorded
from op_tools.core import output_paths, terminal
from op_tools.tensors.snapshot import Snapshot, describe, extent, values

# Types whose tensors keep `requires_grad`; torch cannot load one of another type that has it.
DIFFERENTIABLE = frozenset(
    getattr(torch, name) for name in "float16 bfloat16 float32 float64 complex64 complex128".split()
)
WASTE = 2  # a non-contiguous tensor of at most this factor of memory keeps its strides


class FolderStore:
    """Writes calls synchronously: the input is on disk before the operator runs."""

    native = True  # see `encode`

    def __init__(self) -> None:
        self.place = output_paths.folder("op_capture_results")
        self.bytes = 0
        self.failed = ""
        self._owner = output_paths.owner(self.place)

    def take(self, tensor: Tensor) -> Snapshot:
        """Copy a tensor to the host."""
        return describe(tensor, values(tensor))

    def write(self, part: Part) -> None:
        """Write the two files of a part of a call."""
        header = part.header
        where = self.place / header["name"] / self._owner / str(header["id"]) / header["time"]
        self.bytes += write(where, part)

    def drain(self) -> None:
        """Do nothing: there is no queue."""

    close = drain


def write(where: Path, part: Part) -> int:
    """Write a part of a call into its folder, and return the number of bytes."""
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{part.kind}.pth"
    header = part.header
    data = {
        "name": header["name"],
        "args": _filled(part.args),
        "kwargs": _filled(part.kwargs),
        "identifier": f"{header['id']}/{header['time']}",
    }
    more = {key: _filled(value) for key, value in part.more.items()}
    size = _save(path, lambda file: torch.save({**data, **more, "call": header}, file))
    shown: dict[str, Any] = {"args": _shown(part.args)}
    if part.kwargs:
        shown["kwargs"] = _shown(part.kwargs)
    shown |= {"op": header["name"], "call": header}
    text = json.dumps(shown, indent=1, default=str).encode()
    size += _save(path.with_name(path.name + ".json"), lambda file: file.write(text))
    output_paths.budget.spend(size)
    terminal.saved(path)
    return size


def _save(path: Path, write: Callable[[Any], object]) -> int:
    """Write to a temporary file, then rename it: a file is whole or not there."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            write(file)
        size = scratch.stat().st_size
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return size


def _filled(tree: Any) -> Any:
    """Replace snapshots by tensors; one snapshot becomes one tensor."""
    tensors: dict[int, Any] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Snapshot):
            if id(value) not in tensors:
                tensors[id(value)] = _tensor(value)
            return tensors[id(value)]
        if type(value) is dict:
            return {key: walk(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(item) for item in value)
        return value

    return walk(tree)


def _tensor(snapshot: Snapshot) -> Any:
    """A tensor with the strides of a snapshot, or its dense values and strides if less memory."""
    dense = snapshot.values
    assert dense is not None  # made by `FolderStore.take`
    shape, stride = snapshot.shape, snapshot.stride
    if dense.numel() and extent(shape, stride) > WASTE * dense.numel():
        return {TAG: "strided", "value": [dense, list(shape), list(stride)]}
    tensor = snapshot.tensor()
    wants_grad = snapshot.requires_grad and tensor.dtype in DIFFERENTIABLE
    return tensor.detach().requires_grad_() if wants_grad else tensor


def _shown(value: Any) -> Any:
    if isinstance(value, Snapshot):
        return {
            "device": value.device,
            "dtype": str(value.dtype),
            "numel": torch.Size(value.shape).numel(),
            "shape": str(tuple(value.shape)),
            "stride": list(value.stride),
            "requires_grad": value.requires_grad,
            "layout": "torch.strided",
            "data_ptr": value.data_ptr,
        }
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    return str(value)


# Reading.


def read_file(path: Path) -> dict[str, Any]:
    """Read and decode one of the four files, also of the published op_tools."""
    raw = _load(path)
    if not isinstance(raw, dict) or "args" not in raw:
        raise ValueError(f"{path} holds no captured call")
    return {key: value if key == "call" else encoding.decode(value) for key, value in raw.items()}


# Pickled names of classes.
_DEVICE, _PORTABLE = b"ctorch\ndevice\n", b"cop_tools.capture.encoding\nDevice\n"


def _load(path: Path) -> Any:
    """Read a file without decoding it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except RuntimeError as error:
        if "start of device string" not in str(error):
            raise
    # The published tool pickles a torch.device, which torch refuses where that device is missing.
    # Read a copy of the file in which the class is encoding.Device.
    portable = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(portable, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            is_pickle = entry.filename.endswith("/data.pkl")
            target.writestr(entry.filename, data.replace(_DEVICE, _PORTABLE) if is_pickle else data)
    portable.seek(0)
    with torch.serialization.safe_globals([encoding.Device]):
        return torch.load(portable, map_location="cpu", weights_only=True)


def read(folder: Path) -> Recorded:
    """Read the call in a folder: its input, and the other files that exist."""
    files = {kind: folder / f"{kind}.pth" for kind in PARTS}
    parts = {kind: read_file(file) for kind, file in files.items() if file.exists()}
    inputs = parts["input"]
    for kind in PARTS[2:]:
        if kind in parts:
            args = parts[kind]["args"]
            if len(args) == 1 and isinstance(args[0], (list, tuple)):  # of the published tool
                args = args[0]
            parts[kind]["args"] = [item if isinstance(item, Tensor) else None for item in args]
    header = inputs.get("call")
    if header is None:  # of the published tool, whose grad_inputs are those of the last node
        parts.pop("grad_inputs", None)
        number = str(inputs.get("identifier", "")).partition("/")[0]
        header = {"name": str(inputs["name"]), "id": int(number) if number.isdigit() else 0}
    return encoding.recorded(header, parts)


def find(root: Path) -> Iterator[Path]:
    """Yield every folder that holds a captured call: the root and the folders below it."""
    if (root / "input.pth").exists():
        yield root
    for path in sorted(root.rglob("input.pth")):
        if path.parent != root:
            yield path.parent
