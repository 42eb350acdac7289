# SPDX-License-Identifier: Apache-2.0
"""Private names of torch that depend on CUDA.

Names of torch._C in CUDA builds: PyTorch's own tests run each test on another stream, and set
streams and devices this way. And the type of the available device, which torch compares with the
device of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ditorch import calls
from ditorch.patches import Patches, twin
from ditorch.target import Target


def apply(patches: Patches, target: Target) -> None:
    """Set all of them: in a torch that has these names they would start CUDA itself."""
    for name, make in NAMES.items():
        patches.set(torch._C, name, make(target))
    if target.has_index:
        _available_device_type(patches, target)


def _available_device_type(patches: Patches, target: Target) -> None:
    """Return the true device to torch: nn.DataParallel creates devices of this type, and a
    distributed checkpoint copies their tensors to the host.
    """
    original = twin(torch._utils._get_available_device_type)

    def available() -> str | None:
        found: str | None = original()
        inside = found == "cuda" and calls.called_from_inside(2)
        return target.device if inside else found

    patches.replace(torch._utils, "_get_available_device_type", available)


def _set_stream(target: Target) -> Callable[..., None]:
    def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
        calls.used("torch._C._cuda_setStream")
        if target.has_index:  # plain CPU has one stream
            stream = torch.Stream(
                stream_id=stream_id, device_index=device_index, device_type=device_type
            )
            torch.accelerator.set_stream(stream)

    return _cuda_setStream


def _set_device(target: Target) -> Callable[[int], None]:
    def _cuda_setDevice(device: int) -> None:
        torch.cuda.set_device(device)

    return _cuda_setDevice


def _constant(value: Any) -> Callable[[Target], Callable[..., Any]]:
    return lambda target: lambda: value


NAMES: Mapping[str, Callable[[Target], Callable[..., Any]]] = MappingProxyType(
    {
        "_cuda_setStream": _set_stream,
        "_cuda_setDevice": _set_device,
        "_cuda_clearCublasWorkspaces": _constant(None),  # there are no workspaces
        "_cuda_resetCublasWorkspaceSize": _constant(None),
        "_cuda_resetCublasLtWorkspaceSize": _constant(None),
        "_cuda_cudaCachingAllocator_is_enabled": _constant(True),
    }
)
