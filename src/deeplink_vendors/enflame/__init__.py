# SPDX-License-Identifier: Apache-2.0
"""Enflame's GCUs, through torch_gcu."""

from deeplink.plugin import from_package

vendor = from_package(
    "enflame",
    "gcu",
    "torch_gcu",
    collective="eccl",
    visible_devices="TOPS_VISIBLE_DEVICES",
    transfer_tools=("torch_gcu.transfer_to_gcu",),
)
