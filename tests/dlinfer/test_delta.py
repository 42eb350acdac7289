"""The gated delta rule: chunks of tokens give what token by token does, and states go on."""

from typing import Any

import pytest
import torch

import dlinfer
from dlinfer import fused
from dlinfer.conformance.paged import bounds

TOKENS, HEADS, VALUE_HEADS, SIZE, VALUES = 150, 2, 4, 16, 24  # two chunks and a part of one


def _given(dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "q": torch.randn(TOKENS, HEADS, SIZE, dtype=dtype),
        "k": torch.randn(TOKENS, HEADS, SIZE, dtype=dtype),
        "v": torch.randn(TOKENS, VALUE_HEADS, VALUES, dtype=dtype),
        "decay": -torch.rand(TOKENS, VALUE_HEADS, dtype=dtype),
        "beta": torch.rand(TOKENS, VALUE_HEADS, dtype=dtype),
    }


def _plainly(given: dict[str, Any], state: Any) -> tuple[Any, Any]:
    """Apply the rule as it is written, for one sequence."""
    out = torch.empty_like(given["v"])
    each = VALUE_HEADS // HEADS
    for t in range(TOKENS):
        for head in range(VALUE_HEADS):
            q, k = (given[name][t, head // each] for name in "qk")
            q, k = (x / (x.square().sum() + 1e-6).sqrt() for x in (q, k))
            now = state[head] * given["decay"][t, head].exp()
            error = given["beta"][t, head] * (given["v"][t, head] - now.t() @ k)
            state[head] = now + torch.outer(k, error)
            out[t, head] = state[head].t() @ q * 0.25
    return out, state


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_a_prefill_in_parts_and_decoding_give_what_the_rule_says(vendor: str) -> None:
    exact = _given(torch.float64)
    start = torch.randn(VALUE_HEADS, SIZE, VALUES, dtype=torch.float64)
    expected, last = _plainly(exact, start.clone())
    dtype, near = (torch.float64, 1e-10) if vendor == "reference" else (torch.float32, 1e-4)
    given = {name: value.to(dtype) for name, value in exact.items()}
    state = torch.stack((torch.zeros_like(start), start)).to(dtype)
    slots, found = torch.tensor([1]), []
    with dlinfer.using(vendor):
        for begin, end in ((0, 70), (70, 145)):
            part = {name: value[begin:end] for name, value in given.items()}
            cu_q = bounds((end - begin,))
            found.append(
                fused.gated_delta_prefill(**part, state=state, slots=slots, cu_q=cu_q, scale=0.25)
            )
        for t in range(145, TOKENS):
            one = {name: value[t : t + 1] for name, value in given.items()}
            found.append(fused.gated_delta_decode(**one, state=state, slots=slots, scale=0.25))
    torch.testing.assert_close(torch.cat(found).double(), expected, rtol=near, atol=near)
    torch.testing.assert_close(state[1].double(), last, rtol=near, atol=near)
    assert not state[0].any()


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_a_convolution_in_parts_is_that_of_the_whole(vendor: str) -> None:
    x, weight, bias = torch.randn(12, 10), torch.randn(10, 4), torch.randn(10)
    whole = torch.nn.functional.conv1d(x.t()[None], weight[:, None], bias, padding=3, groups=10)
    expected = torch.nn.functional.silu(whole[0, :, :12].t())
    state, slots = torch.full((2, 10, 4), torch.nan), torch.tensor([1])
    with dlinfer.using(vendor):
        first = fused.causal_conv1d_prefill(
            x[:2], weight, bias, state, slots, bounds((2,)), torch.tensor([True])
        )
        more = fused.causal_conv1d_prefill(x[2:9], weight, bias, state, slots, bounds((7,)))
        steps = [
            fused.causal_conv1d_decode(x[t : t + 1], weight, bias, state, slots)
            for t in range(9, 12)
        ]
    torch.testing.assert_close(torch.cat((first, more, *steps)), expected)
    assert torch.equal(state[1], x[8:].t()) and state[0].isnan().all()


def test_a_slot_beyond_the_state_is_an_error() -> None:
    x, state = torch.ones(1, 4), torch.zeros(2, 4, 3)
    with pytest.raises(IndexError, match="causal_conv1d_decode: slot 2 of row 0 is beyond"):
        fused.causal_conv1d_decode(x, torch.ones(4, 4), None, state, torch.tensor([2]))
