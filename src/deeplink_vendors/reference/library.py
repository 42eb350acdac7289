# SPDX-License-Identifier: Apache-2.0
"""The library of the reference chip, built from the C++ in this folder on first use."""

from __future__ import annotations

import ctypes
import logging

from deeplink import native, settings

log = logging.getLogger("torch_dipu")
_library: ctypes.CDLL | None = None


def runtime() -> ctypes.CDLL:
    """Return the library, configured by DIPU_DEVICE_COUNT and
    DIPU_DEVICE_MEMORY at the first call.
    """
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(native.build(["dipu_reference"], log.warning)["dipu_reference"]))
        _library.dipu_reference_configure.argtypes = (ctypes.c_int, ctypes.c_uint64)
        _library.dipu_reference_configure(
            settings.DIPU_DEVICE_COUNT.get(), settings.DIPU_DEVICE_MEMORY.get()
        )
    return _library
