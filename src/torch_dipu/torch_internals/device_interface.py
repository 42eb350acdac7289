# SPDX-License-Identifier: Apache-2.0
"""The device as Dynamo and inductor see it: torch._dynamo.device_interface.DeviceInterface."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from deeplink.after_import import call_after_import
from torch_dipu import dipu

MODULE = "torch._dynamo.device_interface"


def register() -> None:
    """Register the interface when torch._dynamo is imported."""
    call_after_import(MODULE, _register)


def _register(module: ModuleType) -> None:
    interface = _interface_class(module)
    for name in ("dipu", *(f"dipu:{index}" for index in range(dipu.device_count()))):
        module.register_interface_for_device(name, interface)


def _interface_class(module: ModuleType) -> type:
    Base: Any = module.DeviceInterface
    properties: dict[str, Any] = module.caching_worker_device_properties
    current: dict[str, int] = module.caching_worker_current_devices

    class Worker:
        """Properties for the processes that compile, which must not use the device."""

        @staticmethod
        def set_device(device: int) -> None:
            current["dipu"] = device

        @staticmethod
        def current_device() -> int:
            return current["dipu"] if "dipu" in current else dipu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            index = Worker.current_device() if device is None else dipu._get_device_index(device)
            if "dipu" not in properties:
                count = dipu.device_count()
                properties["dipu"] = [dipu.get_device_properties(i) for i in range(count)]
            return properties["dipu"][index]

    class DipuInterface(Base):  # type: ignore[misc]  # a class of torch, found at run time
        device = dipu.device
        Event = torch.Event
        Stream = dipu.Stream

        current_device = staticmethod(dipu.current_device)
        set_device = staticmethod(dipu.set_device)
        device_count = staticmethod(dipu.device_count)
        exchange_device = staticmethod(dipu._exchange_device)
        maybe_exchange_device = staticmethod(dipu._maybe_exchange_device)
        is_available = staticmethod(dipu.is_available)
        synchronize = staticmethod(dipu.synchronize)
        stream = staticmethod(dipu.stream)
        current_stream = staticmethod(dipu.current_stream)
        set_stream = staticmethod(dipu.set_stream)
        get_raw_stream = staticmethod(dipu._get_current_stream_handle)
        memory_allocated = staticmethod(dipu.memory_allocated)
        is_bf16_supported = staticmethod(dipu.is_bf16_supported)
        get_compute_capability = staticmethod(dipu.get_device_capability)

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            dipu.set_stream(
                dipu.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
            )

        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            supported = torch.accelerator.get_device_capability()["supported_dtypes"]
            return dtype in supported

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

        @classmethod
        def raise_if_triton_unavailable(cls, device: Any = None) -> None:
            error = getattr(_exceptions(), "TritonUnavailableError", RuntimeError)  # torch 2.15
            raise error(
                "Triton has no backend for dipu: its inductor writes C++ for the host, which runs "
                "on the device's memory."
            )

        # ---- torch 2.15

        @staticmethod
        def is_gpu() -> bool:
            """False: inductor writes C++ for it, and neither guards nor graphs of a GPU."""
            return False

        @classmethod
        def exposes_streams(cls) -> bool:
            return True

        @classmethod
        def get_multi_processor_count(cls, device: Any = None) -> int:
            count: int = cls.get_device_properties(device).multi_processor_count
            return count

        @classmethod
        def get_cache_system_info(cls) -> dict[str, object]:
            """The code of one chip is not reused for another."""
            found = dipu.get_device_properties(0)
            return {"name": found.name, "capability": [found.major, found.minor]}

    DipuInterface.Worker = Worker
    return DipuInterface


def _exceptions() -> ModuleType:
    import torch._dynamo.exc

    return torch._dynamo.exc
