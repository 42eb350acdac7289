"""The reference chip's runtime: runtime.cpp, built on first use, and collectives over gloo."""

from __future__ import annotations

import ctypes
import logging
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

from deeplink import settings
from deeplink_vendors.reference.build import runtime_library

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store

log = logging.getLogger("torch_dipu")
_library: ctypes.CDLL | None = None


def runtime() -> ctypes.CDLL:
    """The library, configured by DIPU_DEVICE_COUNT and DIPU_DEVICE_MEMORY when first asked for."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(runtime_library().build(say=log.warning)))
        _library.dipu_reference_configure.argtypes = (ctypes.c_int, ctypes.c_uint64)
        _library.dipu_reference_configure(
            settings.DIPU_DEVICE_COUNT.get(), settings.DIPU_DEVICE_MEMORY.get()
        )
    return _library


def communicator(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """The host back end that moves the bytes."""
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout)


def start() -> None:
    """Once the device is registered: the faults named in DIPU_QUIRKS are switched on."""
    if settings.DIPU_QUIRKS.get():
        quirks().start()


def quirks() -> ModuleType:
    """The faults of this chip; loaded when somebody asks, they need the registered device."""
    from deeplink_vendors.reference import quirks

    return quirks
