# SPDX-License-Identifier: Apache-2.0
"""The process group "dicl": the chip's communicator on device tensors."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from deeplink.errors import DeeplinkError
from deeplink.process import gloo_shutdown
from torch_dipu import _C, flight


def register(chip: ModuleType) -> None:
    """Register the process group "dicl" and the device's default backend with torch."""
    if not dist.is_available():
        return

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        flight.start()
        communicator = getattr(chip, "communicator", None)
        host = communicator(store, rank, size, timeout) if communicator is not None else None
        if host is not None:  # a backend for host tensors, on the device's own bytes
            return _C.make_process_group(host)
        if _C.has_communicator():
            return _C.make_chip_group(store, rank, size, int(timeout.total_seconds() * 1000))
        raise DeeplinkError(
            f"the vendor's runtime {chip.__name__} has no communicator.",
            hint="fill in the comm_ functions of the runtime (dipu_runtime.h), or define "
            "communicator(store, rank, size, timeout) in that module.",
        )

    dist.Backend.register_backend("dicl", create, devices=["dipu"])


def serve_device_tensors(group: dist.ProcessGroup) -> None:
    """Let a group that uses gloo for this device run gloo on the host aliases of device tensors.

    A group with another backend, or without one for this device, is unchanged.
    """
    device = torch.device("dipu")
    if device not in group._device_types or not dist.is_gloo_available():
        return
    backend: Any = group._get_backend(device)
    # with TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps the group in a checking group
    if isinstance(getattr(backend, "wrapped_pg", backend), dist.ProcessGroupGloo):
        gloo_shutdown.end_cleanly()
        custom = dist.ProcessGroup.BackendType.CUSTOM
        group._register_backend(device, custom, _C.make_process_group(backend))
