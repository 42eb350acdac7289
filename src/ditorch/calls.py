# SPDX-License-Identifier: Apache-2.0
"""The CUDA calls of the program: which were mapped, which have no equivalent, with call sites."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

# whether a call without an equivalent raises; evaluated at each such call
strict: Callable[[], bool] = lambda: False  # noqa: E731  # assigned by the session


class Unsupported(DeeplinkError):
    """A CUDA call that has no equivalent on the chosen device."""


class DitorchWarning(UserWarning):
    """A CUDA call had no equivalent, and returned a neutral value instead."""


@dataclass(frozen=True)
class Missed:
    """A call without an equivalent: its place in the program and what to use instead."""

    name: str  # "torch.cuda.utilization"
    site: str  # "train.py:12"
    reason: str
    count: int = 1


@dataclass(frozen=True)
class Report:
    """The CUDA calls of the program so far."""

    used: tuple[str, ...]  # mapped names, in the order of their first use
    missed: tuple[Missed, ...]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return one row per name or call site: call, state, site, times, reason."""
        mapped = [(name, "mapped", "", "", "") for name in self.used]
        return mapped + [(m.name, "missed", m.site, str(m.count), m.reason) for m in self.missed]

    def render(self) -> str:
        """Format the report: a line per mapped call,
        then a line per call site without an equivalent.
        """
        lines = [f"{len(self.used)} CUDA calls used and mapped"]
        lines += [f"  {name}" for name in self.used]
        lines.append(f"{len(self.missed)} call sites without an equivalent")
        lines += [f"  {m.site}: {m.name} ({m.count}x): {m.reason}" for m in self.missed]
        return "\n".join(lines)


_used: dict[str, None] = {}  # a dict keeps the order
_missed: dict[tuple[str, str], Missed] = {}
_inside: set[str] = set()  # folders whose frames do not belong to the program


def used(name: str) -> None:
    """Record that a mapped name was called.

    torch.compile does not trace it: it causes neither a graph break nor a guard.
    """
    if not is_dynamo_compiling():  # hot path
        _used[name] = None


def missed(name: str, reason: str, neutral: Any = None, fatal: bool = False) -> Any:
    """Handle a call without an equivalent: raise when strict or fatal, else warn once per call
    site.

    `reason` ends with the alternative. Return the neutral value.
    """
    frame, depth = _caller()
    site = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "unknown"
    before = _missed.get((name, site))
    _missed[name, site] = Missed(name, site, reason, before.count + 1 if before else 1)
    if fatal or strict():
        raise Unsupported(
            _("{name} has no equivalent here; called at {site}.").format(name=name, site=site),
            reason,
        )
    if before is None:
        warnings.warn(
            f"{name} has no equivalent here and returns {neutral!r}: {reason}",
            DitorchWarning,
            stacklevel=depth,
        )
    return neutral


def report() -> Report:
    """Return the calls recorded so far, without calls that torch itself makes."""
    public = (name for name in _used if not name.rpartition(".")[2].startswith("_"))
    return Report(tuple(public), tuple(_missed.values()))


def reset() -> None:
    """Delete all recorded calls."""
    _used.clear()
    _missed.clear()


def belongs_inside(module: Any) -> None:
    """Exclude this module's package from call sites: a call counts for the frame that called it."""
    file = getattr(module, "__file__", None)
    if file:
        _inside.add(_folder(file))


def _folder(file: str) -> str:
    return f"{Path(file).parent}/"


def called_from_inside(depth: int) -> bool:
    """Whether torch, ditorch or the vendor makes the call,
    from the frame `depth` above the caller.
    """
    return _is_inside(sys._getframe(depth + 1).f_code.co_filename)


def called_by_program(through: tuple[str, ...]) -> bool:
    """Whether the program makes a call that reached ditorch through these files of torch."""
    frame: FrameType | None = sys._getframe(1)
    own = ("<ditorch", _folder(__file__), functools.__file__, *through)
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return frame is not None and not _is_inside(frame.f_code.co_filename)


def calling_package() -> str:
    """Return the package that called a patched function: the first one that is not ditorch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "ditorch" and not frame.f_code.co_filename.startswith("<ditorch"):
            return package
        frame = frame.f_back
    return ""


def _caller() -> tuple[FrameType | None, int]:
    """Return the innermost frame of the program, and the stacklevel that names it in `missed`."""
    frame: FrameType | None = sys._getframe(1)  # `missed` itself
    depth = 1
    while frame is not None and _is_inside(frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def _is_inside(filename: str) -> bool:
    return filename.startswith(("<ditorch", *_inside)) or filename == contextlib.__file__


for _module in (torch, sys.modules[__name__]):
    belongs_inside(_module)
