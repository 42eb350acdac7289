# SPDX-License-Identifier: Apache-2.0
"""Kunlunxin's XPUs: torch_xmlir replaces torch.cuda when it is imported."""

from deeplink.plugin import from_package

vendor = from_package(
    "kunlunxin",
    "cuda",
    "torch_xmlir",
    collective="nccl",
    visible_devices="CUDA_VISIBLE_DEVICES",
    native_cuda=True,
)
