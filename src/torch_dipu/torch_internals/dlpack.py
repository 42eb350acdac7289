# SPDX-License-Identifier: Apache-2.0
"""DLPack: exchange of tensors with other libraries, and between devices by a copy.

torch compares with the name "privateuse1", which a renamed device does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_unary
from torch.utils.dlpack import DLDeviceType

from torch_dipu import dipu

Place = tuple[int, int]  # DLDeviceType, index


def register() -> None:
    """Let Tensor.__dlpack__ and __dlpack_device__ know this device; others are unchanged."""
    Tensor: Any = torch.Tensor
    Tensor.__dlpack_device__ = _with_device(Tensor.__dlpack_device__)
    Tensor.__dlpack__ = _with_export(Tensor.__dlpack__)


def _is_plain(tensor: torch.Tensor) -> bool:
    return not has_torch_function_unary(tensor)


def place_of(tensor: torch.Tensor) -> Place:
    """Return where a tensor is, in DLPack's numbers; pinned memory of the device is the host's."""
    if tensor.device.type == "dipu":
        return DLDeviceType.kDLExtDev, tensor.device.index
    return DLDeviceType.kDLCPU, 0


def _with_device(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type in ("dipu", "cpu") and _is_plain(self):
            return place_of(self)
        return plain(self)

    return __dlpack_device__


def _with_export(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def __dlpack__(
        self: torch.Tensor,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: Place | None = None,
        copy: bool | None = None,
    ) -> Any:
        options = {"max_version": max_version, "copy": copy}
        if not _is_plain(self) or not _concerns_device(self, dl_device):
            return plain(self, stream=stream, dl_device=dl_device, **options)
        exported = self
        if dl_device is not None and tuple(dl_device) != place_of(self):
            if copy is False:
                raise BufferError(
                    f"{self.device} cannot export a tensor to {_name(dl_device)} without a copy."
                    "\nHint: copy=None or copy=True."
                )
            exported = self.to(_name(dl_device)) if not self.requires_grad else self
            options["copy"] = None  # it is one
        if exported.device.type == "dipu":
            _order(exported.device, stream)
        return plain(exported, stream=None, **options)

    return __dlpack__


def _concerns_device(tensor: torch.Tensor, wanted: Place | None) -> bool:
    to_device = wanted is not None and wanted[0] == DLDeviceType.kDLExtDev
    return tensor.device.type == "dipu" or (tensor.device.type == "cpu" and to_device)


def _name(place: Place) -> str:
    if place[0] == DLDeviceType.kDLExtDev:
        return f"dipu:{place[1]}"
    if place[0] == DLDeviceType.kDLCPU:
        return "cpu"
    raise BufferError(
        f"expected dl_device to be the host or dipu, found {DLDeviceType(place[0]).name}."
        "\nHint: export to the host, (1, 0)."
    )


def _order(device: torch.device, stream: Any) -> None:
    """Let the consumer's stream, unless it is -1 or None, wait for the work that is launched."""
    if stream is None or stream == -1:
        return
    if type(stream) is not int:
        raise TypeError(f"expected stream to be an int or None, found {type(stream).__name__}")
    consumer = dipu.ExternalStream(stream, device)
    current = dipu.current_stream(device)
    if consumer != current:
        consumer.wait_stream(current)
