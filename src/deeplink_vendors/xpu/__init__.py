# SPDX-License-Identifier: Apache-2.0
"""Intel's GPUs, through torch itself."""

from deeplink.errors import VendorUnavailable
from deeplink.i18n import _
from deeplink.vendor import Vendor

VISIBLE_DEVICES = "ZE_AFFINITY_MASK"


def is_available() -> bool:
    """Query the number of devices, without creating a context on any of them."""
    import torch  # imported on demand: slow

    if not torch.xpu._is_compiled():  # torch.backends has no query for it
        raise VendorUnavailable(f"this torch build ({torch.__version__}) has no XPU")
    if torch.xpu.device_count() == 0:
        raise VendorUnavailable(
            _("no XPU is visible"),
            _("check its driver, and {visible_devices}.").format(visible_devices=VISIBLE_DEVICES),
        )
    return True


vendor = Vendor(
    "xpu",
    "xpu",
    is_available,
    device_module="torch.xpu",
    collective="xccl",
    gaps="deeplink_vendors/xpu/gaps.toml",
    visible_devices=VISIBLE_DEVICES,
)
