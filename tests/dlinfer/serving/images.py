"""torchvision with a torch without CUDA: its wheel is made for CUDA and does not load its ops.

It fails on import, because it registers fake kernels of missing ops. Processors of images
need no such op: they are declared here, empty.
"""

import sys
from pathlib import Path

import torch

OPS = (
    "deform_conv2d",
    "_deform_conv2d_backward",
    "nms",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "qnms",
    "qroi_align",
    "roi_align",
    "_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
)


def declare() -> torch.library.Library:
    """Puts scripts/frameworks' torchvision on the path; the result is kept while it is used."""
    sys.path.append(str(Path(sys.prefix, "vision")))
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPS:
        declared.define(f"{name}(Tensor x) -> Tensor")
    return declared
