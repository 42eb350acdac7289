# SPDX-License-Identifier: Apache-2.0
"""What OpAutoCompare keeps of a call from before it: copies of its arguments on the host."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from op_tools.compare import eligibility
from op_tools.core.call import Call
from op_tools.tensors import aliasing, host_transfer
from op_tools.tensors.overlap import Overlap

REREAD_FIRST, REREAD_EVERY = 16, 8  # calls of an operator whose arguments are read again after it


class Transfer:
    """Copies of tensors to the host, which their device makes while the program goes on."""

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late  # else each copy is there when it is returned
        self._devices: set[torch.device] = set()
        self._events: list[torch.Event] = []

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of its own memory, whose values are there after `wait`."""
        flat = tensor.detach()
        if not self.is_late or flat.is_cpu or flat.layout != torch.strided:
            return host_transfer.host_copy(flat)
        if not flat.is_contiguous():
            flat = flat.clone()  # dense, with its strides as far as that goes
        made = torch.empty_like(flat, device="cpu", pin_memory=True)
        made.copy_(flat, non_blocking=True)
        self._devices.add(flat.device)
        return made

    def leaf(self, leaf: Any) -> Any:
        """A copy of a tensor; any other value as it is."""
        return self.copy(leaf) if isinstance(leaf, Tensor) else leaf

    def part(self, take: Callable[[Tensor], Tensor] | None, tensor: Tensor | None) -> Tensor | None:
        """A copy of what `take` makes of a tensor, where there are both."""
        return None if take is None or tensor is None else self.copy(take(tensor))

    def launched(self) -> None:
        """All copies are on their way, each on the stream of the calling thread."""
        for device in self._devices:
            event = torch.Event(device)
            event.record(torch.accelerator.current_stream(device))
            self._events.append(event)
        self._devices = set()

    def wait(self) -> None:
        """Waits until the copies are there."""
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
    """The current stream of a device, by which uploaded tensors are held: another stream might read
    a tensor before it is there.
    """
    if device.type == "cpu":
        return device, 0
    return device, torch.accelerator.current_stream(device).stream_id


@dataclass
class Before:
    """What is known of a call before it is made."""

    call: Call  # with arguments on the host; those of a view as they are on the device
    requires: Collection[int]
    versions: list[int]
    given: Any  # where they hang in the graph: gradients.Arguments, or natively; None: nowhere
    guards: list[tuple[Tensor, Tensor]]
    transfer: Transfer
    is_view: bool = False
    random: eligibility.RandomState | None = None
    overlaps: Sequence[Overlap] = ()  # arguments that overlap in memory


class Rereads:
    """Whether arguments that a call should not write are read again, to see that it did not.

    The first calls of each operator and then a part of them: it costs as much as the rest.
    """

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> bool:
        if self._always or "batch_norm" in call.name:  # its writes are not counted
            return True
        with self._lock:
            number = self._calls[call.name] = self._calls[call.name] + 1
        return number <= REREAD_FIRST or number % REREAD_EVERY == 0


def device_of(call: Call) -> torch.device:
    return call.device or torch.device("cpu")


def kept(call: Call, copy: Callable[[Tensor], Tensor]) -> tuple[Call, frozenset[int]]:
    """A call with copies of its arguments, and those of them whose gradients are wanted."""
    return _replaced(call, host_transfer.Copies(copy))


def _replaced(call: Call, copies: host_transfer.Copies) -> tuple[Call, frozenset[int]]:
    on_host = call.given_others(copies.of(call.args), copies.of(call.kwargs))
    return on_host, frozenset(id(copy) for own, copy in copies if own.requires_grad)


def of_view(call: Call, state: Before, result: Any, wanted: bool = False) -> Before:
    """Record a view's arguments: with values where they are wanted or where the result is a copy,
    else with shapes alone.
    """
    values = wanted or not aliasing.lies_in_arguments(result, call)
    copies = host_transfer.Copies(state.transfer.copy if values else eligibility.outline)
    on_host, requires = _replaced(call, copies)
    return replace(state, call=on_host, requires=requires)
