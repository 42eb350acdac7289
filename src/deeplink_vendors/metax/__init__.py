# SPDX-License-Identifier: Apache-2.0
"""MetaX's GPUs (沐曦): the MACA build of torch presents them as cuda."""

from deeplink.plugin import Marks, presenting_as_cuda

vendor = presenting_as_cuda(
    "metax",
    "MetaX",
    Marks(build="metax", devices=("MetaX",)),
    fused="deeplink_vendors.metax.fused",
)
