"""What a program allows of TF32, which cuDNN uses unless it is told otherwise, and of narrow sums,
which cuBLAS does: where it splits a long sum over the chip, its parts are stored in between.
"""

import torch

from deeplink.precision import Factors, Precision, Sums, tf32

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
        tuple(sums for sums in _SUMS if getattr(torch.backends.cuda.matmul, _last(sums))),
    )


_SUMS = tuple(
    Sums(name, f"torch.backends.cuda.matmul.allow_{short}_reduced_precision_reduction")
    for name, short in (("float16", "fp16"), ("bfloat16", "bf16"))
)


def _last(sums: Sums) -> str:
    return sums.allowed_by.rpartition(".")[2]


def _factors(kind: str, setting: str) -> Factors | None:
    allowed = torch._C._get_fp32_precision_getter("cuda", kind) == "tf32"
    return tf32(setting) if allowed else None
