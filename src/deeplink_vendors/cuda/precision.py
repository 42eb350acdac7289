"""What a program allows of TF32, which cuDNN uses unless it is told otherwise."""

import torch

from deeplink.precision import Factors, Precision, tf32

# The largest relative error of one step of nn.RNN on an H200 without TF32, where torch.tanh errs
# 2**-22.7 and a step with relu nothing.
CUDNN_FUNCTIONS = 2.0**-16.6


def precision() -> Precision:
    """By torch's settings as they are now, the older ones (`allow_tf32`) among them."""
    return Precision(
        _factors("matmul", "torch.backends.cuda.matmul.fp32_precision"),
        _factors("conv", "torch.backends.cudnn.conv.fp32_precision"),
        _factors("rnn", "torch.backends.cudnn.rnn.fp32_precision"),
        CUDNN_FUNCTIONS,
    )


def _factors(kind: str, setting: str) -> Factors | None:
    allowed = torch._C._get_fp32_precision_getter("cuda", kind) == "tf32"
    return tf32(setting) if allowed else None
