# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors on the host on their way to a file. A device makes them in the background."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from op_tools.core import graph_capture
from op_tools.tensors.snapshot import Unsupported


class Staging:
    """Copies tensors to the host; the copies that are not yet released hold `limit` bytes at most.

    A copy from a device is put on the current stream, behind the operator that computed the values
    and before any operator that overwrites them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def copy(self, flat: Tensor) -> tuple[Tensor, torch.Event | None]:
        """Copy values into host memory. The bytes are there once the event is reached; None: now.

        Blocks while `limit` bytes are held. Raises Unsupported while a CUDA graph is captured.
        """
        if flat.device.type != "cpu" and graph_capture.captures(flat.device.type)():
            raise Unsupported("a tensor of a graph that is being captured")
        size = flat.nbytes
        self.reserve(size)
        try:
            with _disable_current_modes():  # a mode of the program must not see the copy
                return _copy(flat, size)
        except BaseException:
            self.release(size)
            raise

    def reserve(self, size: int) -> None:
        """Count bytes as held; blocks until they are within the limit, or nothing else is held."""
        with self._changed:
            while self._held and self._held + size > self._limit:
                self._changed.wait()
            self._held += size

    def drain(self) -> None:
        """Wait until nothing is held."""
        with self._changed:
            while self._held:
                self._changed.wait()

    def release(self, size: int) -> None:
        """Give back bytes that were reserved or copied."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()


def _copy(flat: Tensor, size: int) -> tuple[Tensor, torch.Event | None]:
    memory = page_locked(size) if _is_asynchronous(flat.device.type) else None
    if memory is None:
        memory = torch.empty(size, dtype=torch.uint8)
        memory.view(flat.dtype).view(flat.shape).copy_(flat)
        return memory, None
    memory.view(flat.dtype).view(flat.shape).copy_(flat, non_blocking=True)
    event = torch.Event(flat.device, blocking=True)
    event.record(torch.accelerator.current_stream(flat.device))
    return memory, event


@cache
def _is_asynchronous(kind: str) -> bool:
    """Whether a kind of device copies to page-locked memory and marks the end with an event."""
    device = torch.accelerator.current_accelerator()
    if device is None or device.type != kind or page_locked(1) is None:
        return False
    try:
        torch.Event(kind, blocking=True).record()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def page_locked(size: int) -> Tensor | None:
    """Host memory that a device copies into without the CPU; None: there is none, or no more."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return None
