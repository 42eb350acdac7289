"""Whose device a framework serves from."""

from __future__ import annotations

import importlib

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.vendor import LAST_RESORT, Vendor


def chosen() -> Vendor:
    """The vendor that serves: as everywhere, but the CPU and not the reference device where nobody
    asks for one and no accelerator is there, because the CPU has fused kernels.
    """
    found = vendors.choose().vendor
    if found.name == LAST_RESORT and not settings.DEEPLINK_VENDOR.get():
        found = vendors.choose("cpu").vendor
    if found.device_module:  # brings the device to torch
        importlib.import_module(found.device_module)
    return found
