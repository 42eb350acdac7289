# SPDX-License-Identifier: Apache-2.0
"""Huawei's Ascend NPUs, through torch_npu."""

from deeplink.plugin import from_package

vendor = from_package(
    "ascend",
    "npu",
    "torch_npu",
    collective="hccl",
    visible_devices="ASCEND_RT_VISIBLE_DEVICES",
    transfer_tools=("torch_npu.contrib.transfer_to_npu",),
    fused="deeplink_vendors.ascend.fused",
    gaps="deeplink_vendors/ascend/gaps.toml",
)
