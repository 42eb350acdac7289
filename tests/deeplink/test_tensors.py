"""Functions on tensors that torch lacks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deeplink.tensors import bytes_of

NINE = torch.arange(9, dtype=torch.float64)


@pytest.mark.parametrize(
    "tensor",
    [
        NINE.reshape(3, 3).t(),
        NINE[1:2].as_strided((1,), (2,)),  # contiguous, as any single element
        NINE[0],
        NINE[:0],
        NINE.to(torch.bfloat16)[::2],
        torch.tensor([True, False]),
    ],
)
def test_bytes_are_those_of_the_values_in_order(tensor: Tensor) -> None:
    expected = torch.tensor(tensor.tolist(), dtype=tensor.dtype)
    found = torch.frombuffer(bytearray(bytes_of(tensor)) or bytearray(8), dtype=tensor.dtype)
    assert torch.equal(found[: tensor.numel()].reshape(tensor.shape), expected)
