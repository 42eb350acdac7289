# SPDX-License-Identifier: Apache-2.0
"""Streams and events for a device without them: work runs synchronously, in order.

The functions are named in the table; each takes the target as its first argument.
"""

from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any, Self

import torch
import torch.cpu

from ditorch.target import Target

_ids = itertools.count(1)
_thread = threading.local()
_CPU = 0  # in torch's enumeration of device types


class Stream(torch.Stream):
    """A stream of the host. Each thread has a current stream, which only programs query."""

    priority: int
    _before: list[Stream]

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Self:
        number = int(kwargs.get("stream_id", next(_ids)))
        made = super().__new__(cls, stream_id=number, device_index=0, device_type=_CPU)
        made.priority, made._before = priority, []
        return made

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0

    def wait_event(self, event: Any) -> None:
        """Do nothing: no work of the host is pending."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: no work of the host is pending."""

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing: all work is already done."""

    def __enter__(self) -> Stream:
        self._before.append(_current())
        _thread.stream = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _thread.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event(torch.cpu.Event):
    """An event of the host, timed by the host's clock."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self.device = torch.device("cpu")
        self._seconds: float | None = None

    @property
    def cuda_event(self) -> int:
        """The handle of the event; 0 until it is recorded, as in CUDA."""
        return 0 if self._seconds is None else id(self)

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing: all work is already done."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: no work of the host is pending."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to the other;
        both must be recorded with timing.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1000


_default = Stream(stream_id=0)


def _current() -> Stream:
    stream: Stream = getattr(_thread, "stream", _default)
    return stream


def current_stream(target: Target, device: Any = None) -> Any:
    if target.has_index:
        return torch.accelerator.current_stream(target.name(device))
    return _current()


def default_stream(target: Target, device: Any = None) -> Any:
    if not target.has_index:
        return _default
    now = torch.accelerator.current_stream(target.name(device))
    return torch.Stream(
        stream_id=0, device_index=now.device_index, device_type=int(now.device_type)
    )


def set_stream(target: Target, stream: Any) -> None:
    if stream is None:
        return
    if target.has_index:
        torch.accelerator.set_stream(stream)
    else:
        _thread.stream = stream


def set_stream_by_id(target: Target, stream_id: int, device_index: int, device_type: int) -> None:
    if target.has_index:
        stream = torch.Stream(
            stream_id=stream_id, device_index=device_index, device_type=device_type
        )
        torch.accelerator.set_stream(stream)
    else:
        _thread.stream = Stream(stream_id=stream_id)


def record_stream(self: torch.Tensor, s: Any) -> None:
    """Tensor.record_stream: do nothing,
    because a host call does not use memory after it returns.
    """


# Ranges for a profiler that does not run here: only their nesting is tracked.


def range_push(target: Target, msg: str) -> int:
    """Open a range and return its depth, from 0."""
    depth: int = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    return depth


def range_pop(target: Target) -> int:
    """Close a range and return its depth; -1 where none is open."""
    depth: int = getattr(_thread, "depth", 0)
    _thread.depth = max(depth - 1, 0)
    return depth - 1


def range_start(target: Target, msg: str, stream: int = 0) -> int:
    """Return a handle for range_end."""
    return next(_ids)
