"""What every part shares: vendors, settings, errors; results are compared by `deeplink.compare`."""

from deeplink.errors import (
    BuildError,
    DeeplinkError,
    NoVendorError,
    SettingError,
    VendorBrokenError,
    VendorUnavailable,
)
from deeplink.losses import observe_loss
from deeplink.vendor import Choice, Found, Vendor, choose, discover

__all__ = [
    "BuildError",
    "Choice",
    "DeeplinkError",
    "Found",
    "NoVendorError",
    "SettingError",
    "Vendor",
    "VendorBrokenError",
    "VendorUnavailable",
    "choose",
    "discover",
    "observe_loss",
]
__version__ = "0.1.0"
