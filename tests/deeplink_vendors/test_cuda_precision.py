"""CUDA's record of precision for TF32 and narrow sums, by torch's settings; needs no GPU."""

from collections.abc import Iterator

import pytest
import torch
from torch.backends import cuda, cudnn

from deeplink.precision import Precision
from deeplink_vendors.cuda import precision


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Restore torch's defaults around each test: torch.testing changes them in its process."""
    _set_defaults()
    yield
    _set_defaults()


def _set_defaults() -> None:
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32"
    _allow(matmul=False, convolution=True)


def _allow(matmul: bool, convolution: bool) -> None:
    """Use the older settings, because torch.testing blocks writes to cudnn's newer ones."""
    cuda.matmul.allow_tf32 = matmul
    torch._C._set_cudnn_allow_tf32(convolution)


def kinds(found: Precision) -> list[str]:
    named = zip(("matmul", "convolution", "recurrent"), vars(found).values(), strict=False)
    return [name for name, factors in named if factors is not None]


def test_by_default_cudnn_may_use_it_and_matrix_products_may_not() -> None:
    assert kinds(precision.precision()) == ["convolution", "recurrent"]


def test_the_older_settings_are_heard() -> None:
    _allow(matmul=True, convolution=False)
    found = precision.precision()
    assert kinds(found) == ["matmul"]
    assert found.matmul is not None
    assert found.matmul.allowed_by == "torch.backends.cuda.matmul.fp32_precision"
    assert found.matmul.roundoff == 2.0**-11


def test_each_kind_has_its_own_setting() -> None:
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = "ieee", "tf32"
    assert kinds(precision.precision()) == ["recurrent"]


def test_sums_in_the_narrow_types_have_settings_of_their_own() -> None:
    assert [sums.format for sums in precision.precision().sums] == ["float16", "bfloat16"]
    cuda.matmul.allow_bf16_reduced_precision_reduction = False
    try:
        (sums,) = precision.precision().sums
    finally:
        cuda.matmul.allow_bf16_reduced_precision_reduction = True
    assert sums.allowed_by == "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction"
