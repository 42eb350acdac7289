# SPDX-License-Identifier: Apache-2.0
"""Moore Threads' GPUs, through torch_musa."""

from deeplink.plugin import from_package

vendor = from_package(
    "moore",
    "musa",
    "torch_musa",
    collective="mccl",
    visible_devices="MUSA_VISIBLE_DEVICES",
    transfer_tools=("torchada",),
)
