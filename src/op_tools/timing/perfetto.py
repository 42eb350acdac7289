# SPDX-License-Identifier: Apache-2.0
"""A trace for Perfetto: operators and modules on the host, and their times on the device."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.i18n import _
from op_tools.core import module_stack, tool_errors
from op_tools.timing.clock import Clock, HostClock, Mark

if TYPE_CHECKING:
    from op_tools.timing.call_timer import Row

_BUFFER = 4096  # pending events at most


class _Modules(threading.local):
    """The modules that a thread is in, and when it entered them."""

    def __init__(self) -> None:
        self.stack: list[tuple[torch.nn.Module, int]] = []


class Trace:
    """A trace file, which is written while the program runs; a truncated file still opens."""

    def __init__(self, path: Path) -> None:
        self.path = _own(path)
        self._pending: list[str] = []
        self._tracks: dict[str, int] = {}
        self._anchors: dict[int, tuple[Mark, float]] = {}  # by clock: a mark, its time in us
        self._threads: set[int] = set()
        self._handles: list[Any] = []
        self._modules = _Modules()
        self._lock = threading.RLock()
        self._failed = False
        self._begun = False
        self._process = os.getpid()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            there = self.path.exists()
            self.path.open("ab").close()
            if not there:
                self.path.unlink()
        except OSError as error:
            raise SettingError(
                _("the trace {path} cannot be written: {strerror}.").format(
                    path=path, strerror=error.strerror or error
                ),
                _("name a file in a folder that you may write (OP_TIME_MEASURE_TRACE)."),
            ) from None
        self._name("process_name", f"rank {settings.rank()} (pid {self._process})")

    # Events.

    def call(self, row: Row, spans: Sequence[tuple[Mark, float]]) -> None:
        """Add a call: its launch on the host, its time on the device, its backward pass."""
        group, kind = row.group, row.group.kind
        about = {
            "id": row.id,
            "step": row.step,
            "module": kind.module,
            "line": str(kind.site) if kind.site else "",
            "arguments": kind.shape,
        }
        if group.flops:
            about["flops"] = group.flops
        if group.collective is not None:
            about |= {"bytes": group.collective.bytes, "ranks": group.collective.size}
        if row.device.type != "cpu":
            self._thread(row.thread)
            self._slice(
                *(row.thread % 2**31, kind.op, row.launched / 1e3),
                *((row.returned - row.launched) / 1e3, "launch", {"id": row.id}),
            )
        word = "collectives" if group.collective is not None else "operators"
        track = self._track(f"{row.device} {word}")
        start = self._at(row.clock, row.start)
        category = "backward" if row.backward else "forward"
        self._slice(track, kind.op, start, row.forward_ms * 1e3, category, about)
        for i, (mark, ms) in enumerate(spans):
            at = self._at(row.clock, mark)
            self._slice(track, kind.op, at, ms * 1e3, "backward", about)
            if not i:  # an arrow from the call to its gradient
                common = {"cat": "gradient", "name": "gradient", "id": row.id}
                self._write(common | {"ph": "s", "tid": track, "ts": start})
                self._write(common | {"ph": "f", "bp": "e", "tid": track, "ts": at})

    def follow_modules(self) -> None:
        """Add the calls of modules, as nested slices."""
        self._handles += [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> Path:
        """End the file, and return its path."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with self._lock:
            end = {"ph": "M", "name": "process_sort_index", "args": {"sort_index": settings.rank()}}
            self._write(end)
            self._flush(last=True)
        return self.path

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._modules.stack.append((module, perf_counter_ns()))

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._modules.stack
        while stack:
            entered, start = stack.pop()
            if entered is module:
                thread = threading.get_ident()
                self._thread(thread)
                name = module_stack.path() or type(module).__name__
                took = (perf_counter_ns() - start) / 1e3
                about = {"class": type(module).__name__}
                self._slice(thread % 2**31, name, start / 1e3, took, "module", about)
                return

    # Times: all on the host's clock, in microseconds.

    def anchor(self, clock: Clock) -> None:
        """Synchronize once with the device, to relate its clock to the host's."""
        if not isinstance(clock, HostClock):
            event = clock.mark()
            clock.between(event, event)
            event = clock.mark()
            self._anchors[id(clock)] = (event, perf_counter_ns() / 1e3)

    def _at(self, clock: Clock, mark: Mark) -> float:
        if isinstance(clock, HostClock):
            return float(mark) / 1e3
        event, at = self._anchors[id(clock)]
        return at + clock.between(event, mark) * 1e3

    # The file.

    def _track(self, name: str) -> int:
        if name not in self._tracks:
            self._tracks[name] = len(self._tracks) + 1
            self._name("thread_name", name, self._tracks[name])
        return self._tracks[name]

    def _thread(self, ident: int) -> None:
        if ident not in self._threads:
            self._threads.add(ident)
            self._name("thread_name", f"host thread {ident}", ident % 2**31)

    def _name(self, what: str, name: str, track: int = 0) -> None:
        self._write({"ph": "M", "name": what, "tid": track, "args": {"name": name}})

    def _slice(
        self, track: int, name: str, start: float, took: float, category: str, about: Any
    ) -> None:
        event = {"ph": "X", "name": name, "cat": category, "tid": track, "args": about}
        self._write(event | {"ts": round(start, 3), "dur": round(max(0.0, took), 3)})

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._pending.append(json.dumps({"pid": self._process} | event))
            if len(self._pending) >= _BUFFER:
                self._flush()

    def _flush(self, last: bool = False) -> None:
        text = ",\n".join(self._pending) + ("\n]\n" if last else ",\n")
        self._pending.clear()
        if self._failed:
            return
        try:
            with self.path.open("a" if self._begun else "w", encoding="utf-8") as file:
                file.write(text if self._begun else "[\n" + text)
            self._begun = True
        except OSError as error:  # a full disk ends the trace, not the program
            self._failed = True
            tool_errors.add("OpTimeMeasure", str(self.path), error)


def _own(path: Path) -> Path:
    """The path of this process's trace: with its rank or pid, if it is one of several."""
    if settings.world() > 1:
        return path.with_stem(f"{path.stem}_rank{settings.rank()}")
    if multiprocessing.parent_process() is not None:
        return path.with_stem(f"{path.stem}_pid{os.getpid()}")
    return path
