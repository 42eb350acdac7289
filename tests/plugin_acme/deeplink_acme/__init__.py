"""ACME's vendor record. The chip is made up: its torch device is the CPU's."""

from pathlib import Path

from deeplink.errors import VendorUnavailable
from deeplink.vendor import Vendor

DRIVER = Path(__file__).with_name("driver")  # a real vendor looks for /dev/acme0 or its library


def is_available() -> bool:
    """Whether the driver is there."""
    if not DRIVER.exists():
        raise VendorUnavailable("the ACME driver is not loaded", f"create {DRIVER.name}.")
    return True


vendor = Vendor("acme", "cpu", is_available, collective="gloo", note="ACME chip (made up)")
