"""flex_attention on the device against the CPU's, in eager mode and compiled by inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)
from torch.nn.functional import scaled_dot_product_attention

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:`torch.jit."),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _tensors(device: str, *, requires_grad: bool = False) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, 2, 64, 16, generator=numbers).to(device).requires_grad_(requires_grad)
        for _ in range(3)
    ]


def _causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def _softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return torch.tanh(score / 2) * 2 + (q - kv) * 0.01


def _mask(device: str) -> BlockMask:
    return create_block_mask(_causal, None, None, 64, 64, device=device, BLOCK_SIZE=32)


def _attend(device: str, compiled: bool, tensors: list[Tensor], **options: Any) -> Any:
    function: Callable[..., Any] = torch.compile(flex_attention) if compiled else flex_attention
    if options.pop("masked", False):
        options["block_mask"] = _mask(device)
    return function(*tensors, **options)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "block_mask": {"masked": True},
    "score_mod": {"score_mod": _softcap},
    "both": {"masked": True, "score_mod": _softcap, "scale": 0.3},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_the_cpus(case: str, compiled: bool) -> None:
    expected = _attend("cpu", False, _tensors("cpu"), **CASES[case])
    actual = _attend("dipu", compiled, _tensors("dipu"), **CASES[case])
    assert actual.device.type == "dipu"
    torch.testing.assert_close(actual.cpu(), expected)


def _reference(tensors: list[Tensor]) -> Tensor:
    """The attention of the case "both" in plain operators: the CPU has no backward of flex."""
    q, k, v = tensors
    scores = _softcap(
        q @ k.transpose(-1, -2) * 0.3,
        *(torch.empty(0),) * 2,
        torch.arange(64)[:, None],
        torch.arange(64)[None, :],
    )
    causal = torch.ones(64, 64, dtype=torch.bool).tril()
    return scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_the_same_attention_in_plain_operators(compiled: bool) -> None:
    ours, theirs = _tensors("dipu", requires_grad=True), _tensors("cpu", requires_grad=True)
    _attend("dipu", compiled, ours, **CASES["both"]).square().sum().backward()
    _reference(theirs).square().sum().backward()
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.grad is not None
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_bias_gets_its_gradient(compiled: bool) -> None:
    bias = torch.zeros(64, device="dipu", requires_grad=True)

    def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return score + bias[kv]

    tensors = _tensors("dipu")
    _attend("dipu", compiled, tensors, score_mod=add_bias).square().sum().backward()
    expected = torch.zeros(64, requires_grad=True)
    mask = expected.expand(64, 64)
    scaled_dot_product_attention(*_tensors("cpu"), attn_mask=mask).square().sum().backward()
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad.cpu(), expected.grad, atol=1e-4, rtol=1e-4)


def test_grouped_heads_and_the_log_sum_of_exponentials_are_the_cpus() -> None:
    results = []
    for device in ("cpu", "dipu"):
        q, k, v = _tensors(device)
        wanted = {"enable_gqa": True, "return_aux": AuxRequest(lse=True)}
        out, aux = flex_attention(q, k[:, :1], v[:, :1], **wanted)
        results.append((out, aux.lse))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


def test_the_cpu_keeps_its_own_limits() -> None:
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex_attention(*_tensors("cpu", requires_grad=True))
