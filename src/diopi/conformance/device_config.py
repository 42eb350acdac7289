# SPDX-License-Identifier: Apache-2.0
"""A `device_config.py`: the cases that a chip's own tests skip, in the published suite's format.

from diopi.conformance.device_config import Skip

device_configs = {
    "softmax": {"dtype": [Skip("float64")]},
    "diopiSort": {"skip_all": True},
    "*": {"dtype": [Skip("complex64"), Skip("complex128")]},
    "conv2d": {  # single cases, by the shape or the dtype of a tensor
        "tensor_para": {
            "args": [{"ins": ["input"], "shape": [Skip((2, 256, 200, 304))]}],
        },
    },
}

Without "ins" the entry applies to every tensor of the call.
"""

from __future__ import annotations

import fnmatch
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.errors import DeeplinkError
from deeplink.judge.verdict import name_of
from diopi import adaptor
from diopi.conformance.cases.sample import Sample
from diopi.conformance.planning import guests
from diopi.op import Op, all_ops
from diopi.schema import RENAMED

FILE = "device_config.py"
KEYS = ("name", "skip_all", "dtype", "tensor_para")
PARA = ("args",)
ARGS = ("ins", "shape", "dtype")


@dataclass(frozen=True)
class Skip:
    """A value that is skipped: a dtype by its name, or an object of torch or numpy."""

    value: Any

    @property
    def dtype(self) -> str:
        if isinstance(self.value, (str, torch.dtype)):
            return str(self.value).removeprefix("torch.")
        return str(getattr(self.value, "__name__", self.value))


@dataclass(frozen=True)
class SkippedCall:
    """Skipped calls of an op: those with a tensor of this shape or dtype."""

    op: str
    names: tuple[str, ...] = ()  # arguments; empty: every tensor
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    def reason(self, op: Op, sample: Sample) -> str:
        """Return why the call of a sample is skipped; "" where it is not."""
        for name, tensor in _tensors(op, sample):
            if self.names and name not in self.names:
                continue
            if tuple(tensor.shape) in self.shapes:
                return f"{FILE} skips shape {list(tensor.shape)} of {name}"
            if name_of(tensor.dtype) in self.dtypes:
                return f"{FILE} skips dtype {name_of(tensor.dtype)} of {name}"
        return ""


def _tensors(op: Op, sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a call with the names of the op's arguments."""
    names = [argument.name for argument in op.arguments]
    names += [f"argument {at}" for at in range(len(names), len(sample.args))]
    values = [*zip(names, sample.args, strict=False), *sample.kwargs.items()]
    for name, value in values:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield RENAMED.get(name, name), leaf


@dataclass(frozen=True)
class DeviceConfig:
    """The skipped cases: pairs of an op (or a pattern) and a dtype, `*` being all; single calls."""

    skips: tuple[tuple[str, str], ...] = ()
    calls: tuple[SkippedCall, ...] = ()

    def wants(self, op: str, dtype: str) -> bool:
        """Whether cases of this op in this dtype are run."""
        return not any(
            fnmatch.fnmatch(op, pattern) and skipped in ("*", dtype)
            for pattern, skipped in self.skips
        )


def read(folder: Path) -> DeviceConfig:
    """Read the file, or the one in a folder."""
    path = folder / FILE if folder.is_dir() else folder
    if not path.is_file():
        raise DeeplinkError(f"there is no {path}.", hint=f"give a folder with a {FILE}.")
    try:
        found = runpy.run_path(str(path)).get("device_configs")
    except Exception as error:  # another author's code: whatever it raises is reported
        raise DeeplinkError(f"{path} does not run: {type(error).__name__}: {error}.") from error
    if not isinstance(found, dict):
        raise DeeplinkError(f"{path} has no dict `device_configs`.")
    skips: list[tuple[str, str]] = []
    calls: list[SkippedCall] = []
    for key, entry in found.items():
        skips += _skips(path, key, entry)
        calls += _calls(path, key, entry)
    return DeviceConfig(tuple(skips), tuple(calls))


def _check(path: Path, key: str, entry: Mapping[str, Any], known: Sequence[str]) -> None:
    if odd := sorted(set(entry) - set(known)):
        raise DeeplinkError(f"{path}: {key!r} has {', '.join(odd)}; known: {', '.join(known)}.")


def _calls(path: Path, key: str, entry: dict[str, Any]) -> Iterator[SkippedCall]:
    """Yield the single calls of an entry: `tensor_para` with `args`, as in the published suite."""
    para = entry.get("tensor_para", {})
    _check(path, f"{key}: tensor_para", para, PARA)
    for row in para.get("args", ()):
        _check(path, f"{key}: tensor_para: args", row, ARGS)
        shapes = [_value(skip) for skip in row.get("shape", ())]
        for name in entry.get("name", [key]):
            for op in _ops(path, name):
                named = (adaptor.names(name) or adaptor.names(op) or ("", {}))[1]
                yield SkippedCall(
                    op,
                    tuple(named.get(one, one) for one in row.get("ins", ())),
                    tuple(tuple(s) if isinstance(s, (tuple, list)) else (s,) for s in shapes),
                    tuple(skip.dtype for skip in row.get("dtype", ())),
                )


def _value(skip: Any) -> Any:
    return skip.value if isinstance(skip, Skip) else skip


def _skips(path: Path, key: str, entry: dict[str, Any]) -> list[tuple[str, str]]:
    _check(path, key, entry, KEYS)
    ops = [op for name in entry.get("name", [key]) for op in _ops(path, name)]
    if entry.get("skip_all"):
        return [(op, "*") for op in ops]
    return [(op, skip.dtype) for op in ops for skip in entry.get("dtype", [])]


def _ops(path: Path, name: str) -> list[str]:
    known = all_ops()
    found = [op for op in known if fnmatch.fnmatch(op, name) or name in known[op].legacy]
    found += guests.names([name])
    if not found:
        raise DeeplinkError(f"{path}: no op {name!r}.")
    return found
