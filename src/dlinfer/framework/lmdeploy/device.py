# SPDX-License-Identifier: Apache-2.0
"""A replacement of the device "cuda", and of `torch.cuda`, in LMDeploy's modules."""

from __future__ import annotations

import contextlib
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

SHARE = 4  # 1/SHARE of the host's free memory is offered to the cache


class Torch(ModuleType):
    """torch with another `torch.cuda`, for patched modules."""

    def __init__(self, names: Any) -> None:
        super().__init__("torch")
        self.cuda = names

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def names(device: str) -> Any:
    """Return the equivalent of `torch.cuda` for a device: its own module, or `Host`."""
    return Host if device == "cpu" else torch.get_device_module(device)


def memory(device: str) -> tuple[int, int]:
    """Return free and total bytes."""
    free, whole = names(device).mem_get_info()
    return int(free), int(whole)


class Stream:
    """A stream of the host, where all work is done when a call returns."""

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
    """A point of time in the past."""

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
    """The functions of `torch.cuda` that LMDeploy's engine calls, on the host."""

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
