# SPDX-License-Identifier: Apache-2.0
"""Whose device a framework serves from."""

from __future__ import annotations

from collections.abc import Mapping

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.errors import VendorUnavailable
from deeplink.vendor import LAST_RESORT, Vendor


def chosen() -> Vendor:
    """The vendor that serves: as everywhere, but the CPU and not the reference device where nobody
    asks for one and no accelerator is there, because the CPU has fused kernels.
    """
    found = vendors.choose().vendor
    if found.name == LAST_RESORT and not settings.DEEPLINK_VENDOR.get():
        found = vendors.choose("cpu").vendor
    vendors.load_device(found)
    return found


def chosen_chip(kinds: Mapping[str, str]) -> Vendor:
    """The vendor that serves a framework's device types of chips (device type -> vendor): the one
    that is asked for, else the first chip that is available.
    """
    if settings.DEEPLINK_VENDOR.get():
        return chosen()
    rows = {row.name: row for row in vendors.discover()}
    chips = [rows[name] for name in kinds.values() if name in rows]
    found = next((row.vendor for row in chips if row.status == "available"), None)
    if found is None:
        states = "; ".join(f"{row.name} {row.status} ({row.reason})" for row in chips)
        raise VendorUnavailable(
            f"no chip of device types {', '.join(map(repr, kinds))} is available: {states}.",
            f"{settings.DEEPLINK_VENDOR.name}=reference serves them on the reference device, "
            f"{settings.DEEPLINK_VENDOR.name}=cpu on the CPU.",
        )
    vendors.load_device(found)
    return found
