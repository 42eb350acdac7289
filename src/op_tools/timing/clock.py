# SPDX-License-Identifier: Apache-2.0
"""When something happens on a device: by its own events, or by waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import torch

Mark = Any  # an event of the device, or nanoseconds of the host


class Clock(Protocol):
    """Marks moments in a device's work; how far apart two of them are is known later."""

    note: str  # what a reader should know about its times; empty: nothing
    by_marks: bool  # of torch's own events, or of the CPU's time: nothing has to be called

    def mark(self) -> Mark:
        """Now, in the order of the device's work."""

    def ready(self, mark: Mark) -> bool:
        """Whether the device has come to the mark."""

    def between(self, start: Mark, end: Mark) -> float:
        """Milliseconds; waits for the device when it is not there yet."""

    def free(self, mark: Mark) -> None:
        """The mark will not be asked for again."""


class HostClock:
    """The host's clock, after the device has done what it was given."""

    def __init__(self, wait: Callable[[], object] | None = None, note: str = "") -> None:
        self._wait = wait
        self.note = note
        self.by_marks = wait is None

    def mark(self) -> Mark:
        if self._wait is not None:
            self._wait()
        return perf_counter_ns()

    def ready(self, mark: Mark) -> bool:
        return True

    def between(self, start: Mark, end: Mark) -> float:
        return float(end - start) / 1e6

    def free(self, mark: Mark) -> None:
        pass


class EventClock:
    """Events of the device in the current stream; nothing waits. They are used again and again."""

    note = ""

    def __init__(
        self, make: Callable[[], Any], record: Callable[[Any], object], by_marks: bool = False
    ) -> None:
        self._make = make
        self._record = record
        self.by_marks = by_marks
        self._free: list[Any] = []  # append and pop are atomic: threads share it

    def mark(self) -> Mark:
        try:
            event = self._free.pop()
        except IndexError:
            event = self._make()
        self._record(event)
        return event

    def ready(self, mark: Mark) -> bool:
        return bool(mark.query())

    def between(self, start: Mark, end: Mark) -> float:
        end.synchronize()
        return float(start.elapsed_time(end))

    def free(self, mark: Mark) -> None:
        self._free.append(mark)


def clock_for(device: torch.device, mode: str) -> Clock:
    """The clock of a device: by events unless it has none, or `sync` was asked for."""
    if device.type == "cpu":
        return HostClock()
    if mode == "sync":
        return HostClock(_waiting(device))
    for events in (_torch_events, _module_events):
        try:
            found = events(device)
            found.between(found.mark(), found.mark())
        except Exception:  # a vendor's package may raise anything; the next way is tried
            continue
        return found
    note = f"{device.type} has no events that keep time: each operator is waited for"
    return HostClock(_waiting(device), note)


def _torch_events(device: torch.device) -> EventClock:
    index = device.index or 0
    stream = torch._C._accelerator_getStream
    return EventClock(
        lambda: torch.Event(device, enable_timing=True),
        # of this device: an event refuses the stream of another one
        lambda event: event.record(stream(index)),
        by_marks=True,
    )


def _module_events(device: torch.device) -> EventClock:
    module = _module(device)
    return EventClock(
        lambda: module.Event(enable_timing=True),
        lambda event: event.record(module.current_stream(device)),
    )


def _waiting(device: torch.device) -> Callable[[], object]:
    module = _module(device)
    if hasattr(module, "current_stream"):
        return lambda: module.current_stream(device).synchronize()
    if hasattr(module, "synchronize"):
        return lambda: module.synchronize()
    return lambda: torch.accelerator.synchronize(device)


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
