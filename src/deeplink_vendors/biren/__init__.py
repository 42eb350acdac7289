# SPDX-License-Identifier: Apache-2.0
"""Biren's GPUs, through torch_supa, named torch_br in earlier releases."""

from deeplink.plugin import from_package

vendor = from_package(
    "biren",
    "supa",
    "torch_supa",
    "torch_br",
    collective="bccl",
    visible_devices="SUPA_VISIBLE_DEVICES",
    transfer_tools=(
        "torch_supa.contrib.transfer_to_supa",
        "torch_br.contrib.transfer_to_supa",
    ),
)
