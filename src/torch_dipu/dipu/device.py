# SPDX-License-Identifier: Apache-2.0
"""Devices: their number, the current one, and their properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_dipu import _C

__all__ = [
    "_exchange_device",
    "_get_device_index",
    "_is_in_bad_fork",
    "_lazy_call",
    "_lazy_init",
    "_maybe_exchange_device",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "set_device",
    "synchronize",
]

Device = torch.device | str | int | None


@dataclass(frozen=True)
class DeviceProperties:
    """The chip's description of one device, with the fields of torch.cuda's record."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int


def index_of(device: Device | Any, optional: bool = True) -> int:
    """Return the ordinal of a device; None and a device without index select the current device."""
    if isinstance(device, int):
        return device
    if device is None:
        if not optional:
            raise ValueError("expected a dipu device with an index, found None")
        return current_device()
    found = torch.device(device)
    if found.type != "dipu":
        raise ValueError(f"expected a dipu device, found {found}")
    return current_device() if found.index is None else int(found.index)


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    if allow_cpu and device is not None and torch.device(device).type == "cpu":
        return -1
    return index_of(device, optional or not isinstance(device, type(None)))


def is_available() -> bool:
    """Whether there is at least one device."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of devices of the vendor."""
    return int(_C.device_count())


def current_device() -> int:
    """Return the ordinal of the current device of this thread."""
    return int(_C.current_device())


def set_device(device: Device) -> None:
    """Make a device current in this thread; a negative ordinal changes nothing."""
    _C.exchange_device(index_of(device))


def synchronize(device: Device = None) -> None:
    """Wait until all work on all streams of the device is done."""
    _C.synchronize(index_of(device))


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return name, memory and capability of a device."""
    return DeviceProperties(**_C.device_info(index_of(device)))


def get_device_name(device: Device = None) -> str:
    """Return the chip's name."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the chip's capability, as numbered by its vendor."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list() -> list[str]:
    """Return an empty list: no code is compiled for the device ahead of time."""
    return []


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether copies between two devices bypass the host."""
    first, second = index_of(device), index_of(peer_device)
    return first != second and max(first, second) < device_count()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: all floating types of the CPU are supported."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that torch.autocast accepts on this device."""
    return [torch.float16, torch.bfloat16, torch.float32]


def init() -> None:
    """Do nothing: a device is opened at its first use."""


_lazy_init = init


def _lazy_call(callable: Callable[[], None], **kwargs: Any) -> None:
    """Call at once, for torch.accelerator: there is no later moment of initialisation."""
    callable()


def is_initialized() -> bool:
    """Whether a device has been used in this process."""
    return bool(_C.is_initialized())


def _is_in_bad_fork() -> bool:
    return bool(_C.in_bad_fork())


class device:
    """Context manager that makes a device current; None and negative ordinals change nothing."""

    __dipu__ = "dipu"  # programs read the device's name as torch_dipu.dipu.device.__dipu__

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor current; no effect for a host tensor."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "dipu" else -1)


def _exchange_device(device: int) -> int:
    return int(_C.exchange_device(device))


_maybe_exchange_device = _exchange_device
