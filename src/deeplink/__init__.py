# SPDX-License-Identifier: Apache-2.0
"""The package that all parts import: vendors, settings, errors, comparison of results.

The public names are imported on first use, because `import torch` imports this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeplink.errors import (
        BuildError,
        DeeplinkError,
        NoVendorError,
        SettingError,
        VendorBrokenError,
        VendorUnavailable,
    )
    from deeplink.run.loss_log import observe_loss
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
__version__ = "0.2.0"
_MODULES = ("deeplink.errors", "deeplink.run.loss_log", "deeplink.vendor")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(importlib.import_module, _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
