# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's devices, through torch itself."""

from deeplink.errors import VendorUnavailable
from deeplink.vendor import Vendor


def is_available() -> bool:
    """Query the number of devices, without creating a context on any of them."""
    import torch  # imported on demand: slow

    if not torch.backends.cuda.is_built():
        raise VendorUnavailable("this torch build has no CUDA")
    if torch.cuda.device_count() == 0:
        raise VendorUnavailable("no CUDA device is visible")
    return True


vendor = Vendor(
    "cuda",
    "cuda",
    is_available,
    device_module="torch.cuda",
    fused="deeplink_vendors.cuda.fused",
    graph="deeplink_vendors.cuda.graph",
    statistics="deeplink_vendors.cuda.statistics",
    precision="deeplink_vendors.cuda.precision",
    collective="nccl",
    gaps="deeplink_vendors/cuda/gaps.toml",
    visible_devices="CUDA_VISIBLE_DEVICES",
)
