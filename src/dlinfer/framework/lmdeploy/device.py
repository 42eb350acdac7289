# SPDX-License-Identifier: Apache-2.0
"""The device that LMDeploy calls "cuda", and `torch.cuda` as its modules see it."""

from __future__ import annotations

import contextlib
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

SHARE = 4  # of the host's free memory, one part in so many is offered to the cache


class Torch(ModuleType):
    """torch with another `torch.cuda`, for the modules that are given it."""

    def __init__(self, names: Any) -> None:
        super().__init__("torch")
        self.cuda = names

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def names(device: str) -> Any:
    """What `torch.cuda` is on a device: its own module, or that of the host below."""
    return Host if device == "cpu" else torch.get_device_module(device)


def memory(device: str) -> tuple[int, int]:
    """Free and whole, in bytes."""
    free, whole = names(device).mem_get_info()
    return int(free), int(whole)


class Stream:
    """The host has one order: everything is done when it returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


class Event:
    """A point of time that is past."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


_here = Stream()
_Stream = Stream


class Host:
    """`torch.cuda` on the host: what LMDeploy's engine asks of it."""

    Stream = Stream
    Event = Event

    @staticmethod
    def current_stream(device: Any = None) -> _Stream:
        return _here

    @staticmethod
    def stream(stream: _Stream | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @staticmethod
    def device(device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @staticmethod
    def synchronize(device: Any = None) -> None: ...

    @staticmethod
    def empty_cache() -> None: ...

    @staticmethod
    def set_device(device: Any) -> None: ...

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "cpu"

    @staticmethod
    def get_device_properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="cpu", total_memory=Host.mem_get_info()[1], uuid="cpu")

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return (
            os.sysconf("SC_AVPHYS_PAGES") * page // SHARE,
            os.sysconf("SC_PHYS_PAGES") * page,
        )
