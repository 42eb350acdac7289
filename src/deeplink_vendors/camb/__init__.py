# SPDX-License-Identifier: Apache-2.0
"""Cambricon's MLUs, through torch_mlu."""

from deeplink.plugin import from_package

vendor = from_package(
    "camb",
    "mlu",
    "torch_mlu",
    collective="cncl",
    visible_devices="MLU_VISIBLE_DEVICES",
    fused="deeplink_vendors.camb.fused",
    transfer_tools=(
        "torch_mlu.utils.gpu_migration",
        "torch_mlu.utils.model_transfer",
    ),
)
