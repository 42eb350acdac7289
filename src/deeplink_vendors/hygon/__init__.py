# SPDX-License-Identifier: Apache-2.0
"""Hygon's DCUs (海光): the DTK build of torch, a HIP build, presents them as cuda."""

from deeplink.plugin import Marks, presenting_as_cuda

vendor = presenting_as_cuda(
    "hygon",
    "Hygon",
    Marks(build="das", devices=("K100", "Z100", "BW1"), hip=True),
    visible_devices="HIP_VISIBLE_DEVICES",
)
