# SPDX-License-Identifier: Apache-2.0
"""The vendor whose device a framework serves from."""

from __future__ import annotations

from collections.abc import Mapping

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.errors import VendorUnavailable
from deeplink.i18n import _
from deeplink.vendor import LAST_RESORT, Vendor


def chosen() -> Vendor:
    """Choose the vendor that serves; like `deeplink.vendor.choose`, but without a request or an
    accelerator the CPU instead of the reference device, because the CPU has fused kernels.
    """
    found = vendors.choose().vendor
    if found.name == LAST_RESORT and not settings.DEEPLINK_VENDOR.get():
        found = vendors.choose("cpu").vendor
    vendors.load_device(found)
    return found


def chosen_chip(kinds: Mapping[str, str]) -> Vendor:
    """Choose the vendor for a framework's device types of chips (device type -> vendor): the
    requested one, else the first chip that is available.
    """
    if settings.DEEPLINK_VENDOR.get():
        return chosen()
    rows = {row.name: row for row in vendors.discover()}
    chips = [rows[name] for name in kinds.values() if name in rows]
    found = next((row.vendor for row in chips if row.status == "available"), None)
    if found is None:
        states = "; ".join(f"{row.name} {row.status} ({row.reason})" for row in chips)
        raise VendorUnavailable(
            _("no chip of device types {names} is available: {states}.").format(
                names=", ".join(map(repr, kinds)), states=states
            ),
            _(
                "{name}=reference serves them on the reference device, {name}=cpu on the CPU."
            ).format(name=settings.DEEPLINK_VENDOR.name),
        )
    vendors.load_device(found)
    return found
