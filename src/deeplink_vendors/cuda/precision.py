"""What a program allows of TF32, which its settings give to cuDNN unless they are told otherwise."""

from torch.backends import cuda, cudnn

from deeplink.precision import Factors, Products, tf32


def products() -> Products:
    """By torch's settings as they are now, the older ones (`allow_tf32`) among them."""
    return Products(
        _factors(cuda.matmul.fp32_precision, "torch.backends.cuda.matmul"),
        _factors(cudnn.conv.fp32_precision, "torch.backends.cudnn.conv"),
        _factors(cudnn.rnn.fp32_precision, "torch.backends.cudnn.rnn"),
    )


def _factors(precision: str, place: str) -> Factors | None:
    return tf32(f"{place}.fp32_precision") if precision == "tf32" else None
