"""What a program allows of TF32, which cuDNN uses unless it is told otherwise."""

from torch.backends import cuda, cudnn

from deeplink.precision import Factors, Precision, tf32

# Seen on an H200 without TF32: states of an LSTM and a GRU erred as if theirs erred 2**-17.5.
CUDNN_FUNCTIONS = 2.0**-17


def precision() -> Precision:
    """By torch's settings as they are now, the older ones (`allow_tf32`) among them."""
    return Precision(
        _factors(cuda.matmul.fp32_precision, "torch.backends.cuda.matmul"),
        _factors(cudnn.conv.fp32_precision, "torch.backends.cudnn.conv"),
        _factors(cudnn.rnn.fp32_precision, "torch.backends.cudnn.rnn"),
        CUDNN_FUNCTIONS,
    )


def _factors(precision: str, place: str) -> Factors | None:
    return tf32(f"{place}.fp32_precision") if precision == "tf32" else None
