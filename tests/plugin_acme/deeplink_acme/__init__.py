"""ACME's vendor record. The chip is made up; its runtime.py is that of `deeplink new-vendor`."""

from pathlib import Path

from deeplink.errors import VendorUnavailable
from deeplink.vendor import Vendor

DRIVER = Path(__file__).with_name("driver")  # a real vendor checks /dev/acme0 or its library


def is_available() -> bool:
    """Whether the driver is there."""
    if not DRIVER.exists():
        raise VendorUnavailable("the ACME driver is not loaded", f"create {DRIVER.name}.")
    return True


vendor = Vendor(
    "acme",
    "dipu",
    is_available,
    device_module="torch_dipu",
    runtime="deeplink_acme.runtime",
    accelerator=False,  # by name only: it must not hide a real chip
    note="ACME chip (made up)",
)
