# SPDX-License-Identifier: Apache-2.0
"""The C functions that a case calls: which one runs, which one writes outside of its results, and
which one computes incorrectly.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from deeplink.testing.samples import UNINITIALISED
from diopi.conformance.execution.grading import grade
from diopi.conformance.execution.guarded import Guarded, guarded_result
from diopi.conformance.execution.running import WIDE, host
from diopi.inference import Described
from diopi.observing import Observer
from diopi.op import Op

SIZE = 512  # bytes of the file in which a worker records the running function
RUNNING, RETURNED = "running", "returned"


class Calls(Observer):
    """Observes the C functions of one vendor. `finish` synchronizes the device after a call."""

    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        self.functions: list[str] = []  # called functions, in order of their first call
        self.casts: dict[torch.dtype, torch.dtype] = {}  # floating types that the adaptor lowered
        self.overruns: list[str] = []
        self.wrong: list[str] = []
        self._finish = finish
        self._note: mmap.mmap | None = None
        self._guards: list[Guarded] = []
        self._standing: list[Guarded] = []  # guards around results that the suite allocated
        self._judges = False
        self._before: Any = None

    def share(self, path: Path) -> None:
        """Keep the name of the running function in a file, which survives this process."""
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), SIZE)

    def begin(self) -> None:
        """Clear the calls of the previous case."""
        self.functions, self.casts, self.overruns, self.wrong = [], {}, [], []
        self._guards.clear()
        self._write("")

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Compare the results of each function with the CPU's inside the block."""
        self._judges = True
        try:
            yield
        finally:
            self._judges = False

    @contextmanager
    def guarding(self, guards: Sequence[Guarded]) -> Iterator[None]:
        """Check the memory around these tensors after each function inside the block."""
        self._standing = list(guards)
        try:
            yield
        finally:
            self._standing = []

    def result(self, kind: Described, device: torch.device) -> Tensor:
        if not _plain(kind.dtype):
            return kind.empty(device)
        with _disable_current_modes():  # the memory is the suite's, not allocated by a kernel
            made = guarded_result(kind, device)
        self._guards.append(made)
        return made.tensor

    def before(self, op: Op, function: str, given: Mapping[str, Any]) -> None:
        if function not in self.functions:
            self.functions.append(function)
        if self._judges:
            with _disable_current_modes():
                self._before = _copied(given)
        self._write(f"{RUNNING} {function}")

    def after(self, op: Op, function: str, results: Sequence[Any]) -> None:
        self._finish()
        self._write(f"{RETURNED} {function}")
        with _disable_current_modes():
            for guard in (*self._guards, *self._standing):
                if where := guard.outside():
                    self.overruns.append(f"{function} wrote {where}")
            self._standing = [one for one in self._standing if not one.outside()]
            self._guards.clear()
            if self._judges and (what := _mistake(op, self._before, results)):
                self.wrong.append(f"{function} is wrong: {what}")

    def cast(self, source: torch.dtype, target: torch.dtype) -> None:
        floats = source.is_floating_point and target.is_floating_point
        if floats and torch.finfo(target).eps > torch.finfo(source).eps:
            self.casts[source] = target

    def _write(self, text: str) -> None:
        if self._note is not None:
            self._note[:] = text.encode()[:SIZE].ljust(SIZE, b"\0")


def last(path: Path) -> str:
    """Return the last C function of a dead or hung worker from its file; "" for none."""
    if not path.is_file():
        return ""
    state, _, function = path.read_bytes().rstrip(b"\0").decode().partition(" ")
    if state == RUNNING:
        return f"in {function}"
    return f"after {function} had returned" if function else ""


def _plain(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex or dtype in _WHOLE


_WHOLE = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
)  # fmt: skip


def _copied(values: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.detach().cpu().clone(), dict(values))


def _mistake(op: Op, given: Mapping[str, Any], results: Sequence[Any]) -> str:
    """Describe the error in the results of one function, by the op's meaning on the CPU."""
    if op.kind == "random" or op.name in UNINITIALISED:
        return ""
    try:
        plain, wide = _meant(op, given, False), _meant(op, given, True)
    except Exception:  # limits of the CPU
        return ""
    mine = [t for t in pytree.tree_leaves(list(results)) if isinstance(t, Tensor)]
    if len(mine) != len(plain):
        return ""
    for result, here, reference in zip(mine, plain, wide, strict=True):
        if result.shape != here.shape or result.dtype != here.dtype:
            return f"{result.dtype} {list(result.shape)}, expected {here.dtype} {list(here.shape)}"
        judged = grade(host(result), reference, lambda here=here: here, lambda: None)  # type: ignore[misc]
        if judged.grade == "F":
            return judged.message
    return ""


def _meant(op: Op, given: Mapping[str, Any], wide: bool) -> list[Tensor]:
    def move(tensor: Tensor) -> Tensor:
        return tensor.to(WIDE.get(tensor.dtype, tensor.dtype)) if wide else tensor.clone()

    moved = pytree.tree_map_only(Tensor, move, dict(given))
    positional = [moved.pop(a.name) for a in op.arguments if not a.kwarg_only and a.name in moved]
    with torch.no_grad():
        found = op.meaning(*positional, **moved)
    return [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
