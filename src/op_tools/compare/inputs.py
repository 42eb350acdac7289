# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device: arguments of calls to the host, small tensors to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from op_tools.compare.eligibility import HOST
from op_tools.core.call import Call
from op_tools.tensors import host_transfer


class Transfer:
    """Copies of tensors to the host, which their device makes while the program goes on."""

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late  # else each copy is complete when it is returned
        self._devices: set[torch.device] = set()
        self._events: list[torch.Event] = []

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy with its own memory, whose values are valid after `wait`."""
        flat = tensor.detach()
        if not self.is_late or flat.is_cpu or flat.layout != torch.strided:
            return host_transfer.host_copy(flat)
        if not flat.is_contiguous():
            flat = flat.clone()  # dense; strides are preserved where the layout allows
        copy = torch.empty_like(flat, device="cpu", pin_memory=True)
        copy.copy_(flat, non_blocking=True)
        self._devices.add(flat.device)
        return copy

    def leaf(self, leaf: Any) -> Any:
        """A copy of a tensor; any other value as it is."""
        return self.copy(leaf) if isinstance(leaf, Tensor) else leaf

    def launched(self) -> None:
        """Record an event behind the copies, each on the stream of the calling thread."""
        for device in self._devices:
            event = torch.Event(device)
            event.record(torch.accelerator.current_stream(device))
            self._events.append(event)
        self._devices = set()

    def is_complete(self) -> bool:
        """Whether the copies are complete."""
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        """Wait until the copies are complete."""
        while self._events:
            self._events.pop().synchronize()


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device. A copy from memory that is not page-locked would wait for
    the device, as would, on some devices, to free page-locked memory that a copy still reads.
    """
    if device.type == "cpu":
        return tensor
    _uploading.append(tensor.pin_memory())
    return _uploading[-1].to(device, non_blocking=True)


_uploading: deque[Tensor] = deque(maxlen=64)


def stream_of(device: torch.device) -> tuple[torch.device, int]:
    """The current stream of a device, the key of uploaded tensors: another stream might read a
    tensor before its copy is complete.
    """
    if device.type == "cpu":
        return device, 0
    return device, torch.accelerator.current_stream(device).stream_id


def device_of(call: Call) -> torch.device:
    """The device of a call; the host, of a call without one."""
    return call.device or HOST


def copied(call: Call, copy: Callable[[Tensor], Tensor]) -> tuple[Call, frozenset[int]]:
    """A call with copies of its arguments, and the ids of the copies whose gradient is wanted."""
    copies = host_transfer.Copies(copy)
    on_host = call.with_arguments(copies.of(call.args), copies.of(call.kwargs))
    return on_host, frozenset(id(copy) for own, copy in copies if own.requires_grad)
