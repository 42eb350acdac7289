# SPDX-License-Identifier: Apache-2.0
"""Clocks of devices: events of the device, or the host's clock after a synchronization."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

Mark = Any  # an event of the device, or nanoseconds of the host


class HostClock:
    """The host's clock, read after the device has finished its work."""

    def __init__(self, wait: Callable[[], object] | None = None, note: str = "") -> None:
        self._wait = wait
        self.note = note  # a limit of the times that the summary reports; empty: none
        self.by_marks = wait is None  # the native part reads the clock itself

    def mark(self) -> Mark:
        """Mark the current end of the work in the device's queue."""
        if self._wait is not None:
            self._wait()
        return perf_counter_ns()

    def ready(self, mark: Mark) -> bool:
        """Whether the device has reached the mark."""
        return True

    def between(self, start: Mark, end: Mark) -> float:
        """Milliseconds between two marks; synchronizes with the device if needed."""
        return float(end - start) / 1e6

    def free(self, mark: Mark) -> None:
        """Let the clock use the mark for another moment."""


class EventClock:
    """Events of the device in the current stream, without synchronization; events are reused."""

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


Clock = HostClock | EventClock


def clock_for(device: torch.device, mode: str) -> Clock:
    """The clock of a device: its events, unless it has none or the mode is "sync"."""
    if device.type == "cpu":
        return HostClock()
    if mode == "sync":
        return HostClock(_waiting(device))
    for events in (_torch_events, _module_events):
        try:
            clock = events(device)
            clock.between(clock.mark(), clock.mark())
        except Exception:  # a vendor's package may raise anything; try the next one
            continue
        return clock
    note = f"{device.type} has no events with times: each operator is synchronized"
    return HostClock(_waiting(device), note)


def _torch_events(device: torch.device) -> EventClock:
    index = device.index or 0
    stream = torch._C._accelerator_getStream
    return EventClock(
        lambda: torch.Event(device, enable_timing=True),
        # an event refuses the stream of another device
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
    return lambda: torch.accelerator.synchronize(device)


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
