"""The published calls bind and mean what they did: each as releases of LMDeploy write it."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from dlinfer import fused, ops
from dlinfer.conformance.paged import BLOCK, paged

# op, arguments by position, arguments by name
CALLS = """
rms_norm 3
add_rms_norm 4
apply_rotary_pos_emb 4
silu_and_mul 2
fill_kv_cache 5 k_scales_zeros v_scales_zeros quant_bits
prefill_attention 12 softmax_scale attn_output
prefill_attention 12 softmax_scale alibi_slopes attn_output
prefill_attention 11 softmax_scale attn_output actual_seq_lengths_cpu
prefill_attention 9 attn_output
prefill_attention 8 attn_mask softmax_scale attn_output
paged_prefill_attention 16 head_size_v softmax_scale attn_output kv_scales kv_zeros quant_bits
paged_prefill_attention 14 head_size_v softmax_scale attn_output kv_scales kv_zeros quant_bits
paged_decode_attention 10 head_size_v softmax_scale attn_output kv_scales kv_zeros quant_bits
linear 2 bias all_reduce group
moe_gating_topk_softmax 3
moe_gating_topk_softmax 2
fused_moe 7
fused_moe 8
fused_moe 9
dynamic_quant 3
per_token_quant_int8 1
smooth_quant_matmul 7
linear_w8a8 7
rms_norm_w8a8 3
rms_norm_w8a8 4
add_rms_norm_w8a8 5
weight_quant_matmul 3 offset bias all_reduce group_size
""".strip().splitlines()


@pytest.mark.parametrize("line", CALLS)
def test_the_calls_of_lmdeploy_bind(line: str) -> None:
    name, count, *named = line.split()
    bound = inspect.signature(getattr(ops, name)).bind(*range(int(count)), **dict.fromkeys(named))
    forms = {"prefill_attention": ops.PREFILL, "paged_prefill_attention": ops.PAGED_PREFILL}
    if name in forms:
        assert len(bound.arguments["rest"]) in forms[name]


def _packed(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = sum(lengths)
    q, k, v = torch.randn(total, 4, 16), torch.randn(total, 2, 16), torch.randn(total, 2, 16)
    return q, k, v, torch.tensor(lengths)


def _expected(q: Tensor, k: Tensor, v: Tensor, bounds: list[int], causal: bool) -> Tensor:
    cu = torch.tensor(bounds)
    found: Tensor = fused.prefill_attention(q, k, v, cu, cu, 5, 5, 0.25, causal)
    return found


def test_prefill_is_causal_with_caches_and_not_for_images_in_every_release() -> None:
    q, k, v, lengths = _packed((3, 5))
    causal, whole = (_expected(q, k, v, [0, 3, 8], c) for c in (True, False))
    starts, out = torch.tensor([0, 3]), torch.empty(8, 4, 16)
    until_17 = ops.prefill_attention(
        q, k, v, k, v, starts, lengths, lengths, 5, 4, 2, [], softmax_scale=0.25, attn_output=out
    )
    assert until_17 is out
    ends = lengths.cumsum(0)
    in_18 = ops.prefill_attention(
        q, k, v, k, v, lengths, lengths, 5, 4, 2, [], actual_seq_lengths_cpu=ends
    )
    images = ops.prefill_attention(q, k, v, starts, lengths, 5, 4, 2, attn_mask=[])
    assert torch.equal(out, causal) and torch.equal(in_18, causal)
    assert torch.equal(images, whole)


@pytest.mark.parametrize("heads_first", [False, True])
def test_the_cache_is_filled_and_read_in_either_order(heads_first: bool) -> None:
    given = paged(torch.float32, (7, 3), 2, 16, "NHBD" if heads_first else "NBHD")
    caches = [given["k_cache"], given["v_cache"]]
    table, lengths = given["block_table"], given["kv_lens"]
    k, v, q = torch.randn(2, 2, 16), torch.randn(2, 2, 16), torch.randn(2, 4, 16)
    slots = table[:, 0] * BLOCK
    found = ops.fill_kv_cache(k, v, *caches, slots[:, None], (), (), 0)
    assert found == (caches[0], caches[1])
    assert torch.equal(caches[0][table[:, 0].long(), 0], k)
    shown: Any = [c.transpose(1, 2) for c in caches] if heads_first else caches
    rest: Any = (table, BLOCK, None, lengths, 7, 4, 2)
    decoded = ops.paged_decode_attention(q, *shown, *rest, softmax_scale=0.25)
    expected = fused.paged_decode_attention(q, *caches, table, lengths, 7, 0.25)
    assert torch.equal(decoded, expected)
    each = torch.tensor([1, 1])
    more: Any = (table, BLOCK, torch.tensor([0, 1]), each, lengths, None, 1, 7, 4, 2, [])
    prefilled = ops.paged_prefill_attention(q, k, v, *shown, *more, softmax_scale=0.25)
    torch.testing.assert_close(prefilled, expected)
    last: Any = (table, BLOCK, each.cumsum(0), lengths, 1, 7, 4, 2, [])
    in_18 = ops.paged_prefill_attention(q, k, v, *shown, *last, softmax_scale=0.25)
    assert torch.equal(in_18, prefilled)


def test_experts_and_their_weights() -> None:
    x, logits = torch.randn(1, 5, 8), torch.randn(5, 4)
    gate_up, down = torch.randn(4, 12, 8), torch.randn(4, 8, 6)
    weights, experts = ops.moe_gating_topk_softmax(logits, 2, None)
    torch.testing.assert_close(weights, logits.softmax(-1).topk(2).values)
    found = ops.fused_moe(x, gate_up, down, weights, experts, 2, True)
    share = weights / weights.sum(-1, keepdim=True)
    expected = fused.fused_moe(x[0], gate_up, down, share, experts)
    torch.testing.assert_close(found, expected[None])


def test_what_a_published_call_cannot_say_is_refused() -> None:
    given = paged(torch.float32, (3,), 2, 16, "NBHD")
    rest: Any = (given["block_table"], BLOCK, None, given["kv_lens"], 3, 4, 2)
    with pytest.raises(DeeplinkError, match="a cache of 8 bits is not read"):
        ops.paged_decode_attention(
            torch.randn(1, 4, 16), given["k_cache"], given["v_cache"], *rest, quant_bits=8
        )
    with pytest.raises(TypeError, match="takes by position: query, key, value, key_cache"):
        ops.prefill_attention(*_packed((3,))[:3], None)


def test_weights_of_few_bits_lie_the_other_way_round() -> None:
    x, weight = torch.randn(3, 16), torch.randint(-128, 127, (16, 4), dtype=torch.int8)
    scale, offset = torch.rand(2, 4), torch.randn(2, 4)
    found = ops.weight_quant_matmul(x, weight, scale, offset=offset, group_size=8)
    plain = (weight + offset.repeat_interleave(8, 0)) * scale.repeat_interleave(8, 0)
    torch.testing.assert_close(found, x @ plain)
