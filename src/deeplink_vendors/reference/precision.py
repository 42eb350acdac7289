# SPDX-License-Identifier: Apache-2.0
"""The precision that a program allows, by torch's settings that are independent of a vendor.

The device itself is exact; its quirk `tf32` makes it use TF32, allowed or not.
"""

import torch

from deeplink.precision import Precision, tf32


def precision() -> Precision:
    """Read `torch.set_float32_matmul_precision` and `torch.backends.fp32_precision`."""
    coarse = torch._C._get_fp32_precision_getter("generic", "all") == "tf32"
    every = tf32("torch.backends.fp32_precision") if coarse else None
    high = torch.get_float32_matmul_precision() != "highest"
    matmul = tf32("torch.set_float32_matmul_precision") if high else every
    return Precision(matmul, every, every)
