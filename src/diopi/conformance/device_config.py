"""A `device_config.py`: the cases that a chip's own tests leave out, as the published suite has it.

from diopi.conformance.device_config import Skip

device_configs = {
    "softmax": {"dtype": [Skip("float64")]},
    "diopiSort": {"skip_all": True},
    "*": {"dtype": [Skip("complex64"), Skip("complex128")]},
}
"""

from __future__ import annotations

import fnmatch
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from diopi.conformance import guests
from diopi.op import all_ops

FILE = "device_config.py"
KEYS = ("name", "skip_all", "dtype")


@dataclass(frozen=True)
class Skip:
    """A value that is left out: a dtype by its name, or as torch or numpy have it."""

    value: Any

    @property
    def dtype(self) -> str:
        if isinstance(self.value, (str, torch.dtype)):
            return str(self.value).removeprefix("torch.")
        return str(getattr(self.value, "__name__", self.value))


@dataclass(frozen=True)
class DeviceConfig:
    """What is left out: pairs of an op (or a pattern) and a dtype, `*` being all."""

    skips: tuple[tuple[str, str], ...] = ()

    def wants(self, op: str, dtype: str) -> bool:
        """Whether cases of this op in this dtype are run."""
        return not any(
            fnmatch.fnmatch(op, pattern) and skipped in ("*", dtype)
            for pattern, skipped in self.skips
        )


def read(folder: Path) -> DeviceConfig:
    """The file, or the one in a folder."""
    path = folder / FILE if folder.is_dir() else folder
    if not path.is_file():
        raise DeeplinkError(f"there is no {path}.", hint=f"give a folder with a {FILE}.")
    try:
        found = runpy.run_path(str(path)).get("device_configs")
    except Exception as error:  # another's code: whatever it raises is told
        raise DeeplinkError(f"{path} does not run: {type(error).__name__}: {error}.") from error
    if not isinstance(found, dict):
        raise DeeplinkError(f"{path} has no dict `device_configs`.")
    skips: list[tuple[str, str]] = []
    for key, entry in found.items():
        skips += _skips(path, key, entry)
    return DeviceConfig(tuple(skips))


def _skips(path: Path, key: str, entry: dict[str, Any]) -> list[tuple[str, str]]:
    unknown = set(entry) - set(KEYS)
    if unknown:
        raise DeeplinkError(
            f"{path}: {key!r} has {', '.join(sorted(unknown))}; known: {', '.join(KEYS)}."
        )
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
