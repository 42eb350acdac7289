# SPDX-License-Identifier: Apache-2.0
"""The precision that a program allows: TF32, which cuDNN uses by default, and narrow sums of
cuBLAS,
which splits a long sum over the chip and stores its parts in between.
"""

from functools import cache

import torch

from deeplink.precision import Precision, Sums, tf32

# The largest relative error of one step of nn.RNN on an H200 without TF32, where torch.tanh has an
# error of 2**-22.7 and a step with relu none.
CUDNN_FUNCTIONS = 2.0**-16.6

FACTORS = {
    "matmul": "torch.backends.cuda.matmul.fp32_precision",
    "conv": "torch.backends.cudnn.conv.fp32_precision",
    "rnn": "torch.backends.cudnn.rnn.fp32_precision",
}
SUMS = {
    "float16": "allow_fp16_reduced_precision_reduction",
    "bfloat16": "allow_bf16_reduced_precision_reduction",
}


def precision() -> Precision:
    """Read torch's current settings, the older ones (`allow_tf32`) among them."""
    factors = [torch._C._get_fp32_precision_getter("cuda", kind) == "tf32" for kind in FACTORS]
    sums = [bool(getattr(torch.backends.cuda.matmul, name)) for name in SUMS.values()]
    return _allowed(tuple(factors), tuple(sums))


@cache
def _allowed(factors: tuple[bool, ...], sums: tuple[bool, ...]) -> Precision:
    settings = zip(FACTORS.values(), factors, strict=True)
    matmul, convolution, recurrent = (tf32(name) if on else None for name, on in settings)
    types = zip(SUMS.items(), sums, strict=True)
    narrow = tuple(Sums(t, f"torch.backends.cuda.matmul.{name}") for (t, name), on in types if on)
    return Precision(matmul, convolution, recurrent, CUDNN_FUNCTIONS, narrow)
