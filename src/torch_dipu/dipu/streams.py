# SPDX-License-Identifier: Apache-2.0
"""Streams and events: torch's own classes, bound to this device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch

from torch_dipu import _C
from torch_dipu.dipu.device import Device, index_of

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "_get_current_stream_handle",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


class Stream(torch.Stream):
    """A stream of a device; a priority below 0 is a high one."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Self:
        if kwargs:  # stream_id, device_index, device_type: an existing stream
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device("dipu", index_of(device)), priority=priority)

    @property
    def dipu_stream(self) -> int:
        """The vendor's own handle."""
        return self.stream_id

    def wait_event(self, event: torch.Event) -> None:
        """Let all work that is launched from now on wait for the event."""
        event.wait(self)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record an event (a new one when none is given) after all launched work."""
        event = Event() if event is None else event
        event.record(self)
        return event


class ExternalStream(Stream):
    """A stream that another library created, by its handle."""

    def __new__(cls, stream_ptr: int, device: Device = None, **kwargs: Any) -> Self:
        return super().__new__(
            cls, stream_id=stream_ptr, device_index=index_of(device), device_type=_TYPE
        )


class _EventKind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "dipu"


class Event(metaclass=_EventKind):
    """An event of the device, as a torch.Event, which can time two events of its own class."""

    def __new__(  # type: ignore[misc]  # by intent: torch.Event refuses subclasses as arguments
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            "dipu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


_TYPE: int = torch._C._autograd.DeviceType.PrivateUse1.value


def _as_stream(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device: Device = None) -> Stream:
    """Return the stream that receives the work of this thread."""
    return _as_stream(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: Device = None) -> Stream:
    """Return the stream that exists from the start."""
    return Stream(stream_id=0, device_index=index_of(device), device_type=_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream current; `with stream(...)` is preferable."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextmanager
def _stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    device, before = index_of(None), torch.accelerator.current_stream(stream.device_index)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(before)
        _C.exchange_device(device)


def stream(stream: torch.Stream | None) -> AbstractContextManager[None]:
    """Send work inside the block to the stream; None changes nothing."""
    return _stream(stream)


StreamContext = stream


def _get_current_stream_handle(device: Device = None) -> int:
    return int(_C.current_stream_handle(index_of(device)))
