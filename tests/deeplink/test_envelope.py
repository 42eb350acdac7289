"""The errors that an envelope must allow:
real devices round intermediate values in several ways.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deeplink.judge.envelope import envelope

ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}


def worst(result: Tensor, reference: Tensor, sigma: Tensor) -> float:
    """The largest error in units of what the calibrated rule allows."""
    allowed = 2 * ROUNDOFF[result.dtype] * reference.abs() + 8 * sigma
    return float(((result.double() - reference).abs() / allowed).max())


@pytest.mark.parametrize("form", ["function", "in place", "foreach"])
def test_a_product_may_be_rounded_before_it_is_added(form: str) -> None:
    torch.manual_seed(0)
    first, second = torch.rand(2, 4096) + 0.5
    start = 0.01 * first / second * (1 + 1e-3 * torch.randn(4096))  # nearly cancels

    def run() -> list[Tensor | None]:
        base, a, b = start.double(), first.double(), second.double()
        if form == "foreach":
            torch._foreach_addcdiv_([base], [a], [b], value=-0.01)
            return [base]
        if form == "in place":
            return [base.addcdiv_(a, b, value=-0.01)]
        return [torch.addcdiv(base, a, b, value=-0.01)]

    reference = run()[0]
    assert reference is not None
    sigma = envelope(run, [reference])[0]
    assert sigma is not None
    rounded = start + torch.tensor(-0.01) * (first / second)  # three roundings, as a GPU does it
    assert worst(rounded, reference, sigma) < 1
    wrong = start + torch.tensor(-0.0100001) * (first / second)
    assert worst(wrong, reference, sigma) > 1


def test_the_gradient_of_softmax_may_store_its_product() -> None:
    torch.manual_seed(0)
    output = torch.softmax(torch.randn(16, 128), -1).bfloat16()
    grad = torch.randn(16, 128).bfloat16()
    function = torch.ops.aten._softmax_backward_data

    def run() -> list[Tensor | None]:
        return [function(grad.double(), output.double(), -1, torch.float64)]

    reference = run()[0]
    assert reference is not None
    sigma = envelope(run, [reference], between=ROUNDOFF[torch.bfloat16])[0]
    assert sigma is not None
    product = (grad * output).float()  # stored in bfloat16, as CUDA does it
    stored = (product - output.float() * product.sum(-1, keepdim=True)).bfloat16()
    assert worst(stored, reference, sigma) < 1
    without_sum = product.bfloat16()
    assert worst(without_sum, reference, sigma) > 1


def test_equal_and_near_values_are_rounded_alike() -> None:
    torch.manual_seed(0)
    many = 0.7001 + 1e-6 * torch.rand(4096)  # TF32 makes one number of them
    weights = torch.rand(4096)

    def run() -> list[Tensor | None]:
        return [torch.dot(many.double(), weights.double()).reshape(1)]

    reference = run()[0]
    assert reference is not None
    sigma = envelope(run, [reference], entering=2.0**-11)[0]
    assert sigma is not None
    bits = many.view(torch.int32)
    coarse = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    rounded = torch.dot(coarse.double(), weights.double()).float().reshape(1)
    assert worst(rounded, reference, sigma) < 1
    assert worst((reference * 1.01).float(), reference, sigma) > 1


def test_errors_of_rounding_different_values_cancel_in_a_sum() -> None:
    torch.manual_seed(0)
    many = torch.rand(1 << 16)

    def run() -> list[Tensor | None]:
        return [torch.dot(many.double(), torch.ones(1 << 16).double()).reshape(1)]

    sigma = envelope(run, [run()[0]], entering=2.0**-9)[0]
    assert sigma is not None
    assert float(sigma) < 4 * 2.0**-9 * 256  # and not 2 ** 16
