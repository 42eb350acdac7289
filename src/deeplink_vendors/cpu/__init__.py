# SPDX-License-Identifier: Apache-2.0
"""Plain CPU: no device, for code that should run anywhere."""

from deeplink.vendor import Vendor

vendor = Vendor(
    "cpu",
    "cpu",
    lambda: True,
    fused="deeplink_vendors.cpu.fused",
    collective="gloo",
    gaps="deeplink_vendors/cpu/gaps.toml",
    accelerator=False,
    note="plain CPU",
)
