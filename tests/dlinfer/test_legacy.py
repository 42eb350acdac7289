"""The published calls bind and mean what they did: each as releases of LMDeploy write it."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from dlinfer import fused, ops
from dlinfer.conformance.paged import BLOCK, paged
from dlinfer.framework.lmdeploy.calls import Call, scan, unbound

CALLS = Path(__file__).with_name("lmdeploy_calls.csv")
# How the first releases call them: op, arguments by position, arguments by name.
FIRST = """
prefill_attention 12 softmax_scale alibi_slopes attn_output
prefill_attention 9 attn_output
prefill_attention 8 attn_mask softmax_scale attn_output
silu_and_mul 2
fused_moe 7
fused_moe 8
moe_gating_topk_softmax 2
per_token_quant_int8 1
smooth_quant_matmul 7
rms_norm_w8a8 3
""".strip().splitlines()


def _recorded() -> list[Call]:
    """Read the calls that scripts/dlinfer_calls.py wrote from the wheels of releases."""
    rows = csv.DictReader(io.StringIO(CALLS.read_text("utf-8")))
    recorded = [
        Call(row["op"], tuple(row["by position"].split()), tuple(row["by name"].split()))
        for row in rows
    ]
    split = (line.split() for line in FIRST)
    first = [Call(op, tuple("abcdefghijkl"[: int(n)]), tuple(named)) for op, n, *named in split]
    return recorded + first


def test_the_calls_of_lmdeploy_bind() -> None:
    calls = _recorded()
    assert len(calls) > 30
    assert [text for call in calls if (text := unbound(call))] == []


def test_every_op_that_lmdeploy_018_calls_is_served() -> None:
    rows = csv.DictReader(io.StringIO(CALLS.read_text("utf-8")))
    called = {row["op"] for row in rows if "0.18.0" in row["releases"].split()}
    assert len(called) == 21
    assert {name for name in called if name in ops.LEFT_OUT or not hasattr(ops, name)} == set()


def test_what_does_not_bind_or_is_left_out_is_reported() -> None:
    assert unbound(Call("no_such_op", (), ())) == "there is no no_such_op"
    assert (
        unbound(Call("rms_norm", ("x",), ())) == "rms_norm: missing a required argument: 'weight'"
    )
    assert unbound(Call("prefill_attention", tuple("qkvab"), ())).endswith(
        "5 arguments by position"
    )
    source = "ext_ops.linear(x, weight, bias=b)\nother.linear(x)"
    assert scan([source, source]) == [Call("linear", ("x", "weight"), ("bias",))]
    with pytest.raises(AttributeError, match="has no transdata: no op wants weights in a vendor"):
        _ = ops.transdata


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
    assert torch.equal(out, causal) and torch.equal(in_18, causal)
    for before in ((starts, lengths), (None, None, starts, lengths, lengths)):  # the first; to 0.17
        images = ops.prefill_attention(q, k, v, *before, 5, 4, 2, attn_mask=[])
        assert torch.equal(images, whole)
    images_18 = ops.prefill_attention(
        q, k, v, None, None, lengths, lengths, 5, 4, 2, attn_mask=[], actual_seq_lengths_cpu=ends
    )
    assert torch.equal(images_18, whole)


def test_the_first_form_of_rotary_writes_its_arguments() -> None:
    q, k, angles = torch.randn(3, 2, 8), torch.randn(3, 1, 8), torch.randn(3, 8)
    expected = ops.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    kept = q.clone()
    ops.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin(), None, None)
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])
    assert not torch.equal(q, kept)


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
    # values of hundreds, which cancel: float32 keeps some 1e-5 of them
    torch.testing.assert_close(found, x @ plain, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("native", [True, False])
def test_adjacent_pairs_are_turned_and_lie_as_the_call_asks(native: bool) -> None:
    tokens, heads, size = 3, 5, 8
    x, angles = torch.randn(tokens, heads, 1, size), torch.rand(tokens, size // 2) * 6
    both = torch.cat((angles, angles), -1)[:, None, None]
    found = ops.apply_rotary_pos_emb_interleaved(x, both.cos(), both.sin(), native)
    pairs = torch.view_as_complex(x[:, :, 0].unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None])
    expected = turned.transpose(-1, -2) if native else turned
    torch.testing.assert_close(found, expected.reshape(x.shape))
    with pytest.raises(DeeplinkError, match="1 heads; allowed: those of queries and keys"):
        ops.apply_rotary_pos_emb_interleaved(x[:, :1], both.cos(), both.sin())


def test_the_indexer_chooses_keys_for_sparse_attention_which_with_all_of_them_is_dense() -> None:
    """As LMDeploy's layer of DeepSeek-V3.2 calls them: caches of latents and of turned parts."""
    lengths, new, heads, size, turned = (9, 3), torch.tensor([2, 5]), 4, 16, 8
    held = paged(torch.float32, lengths, 1, turned, "NBHD", value_size=size)
    rope, latent, table = held["k_cache"], held["v_cache"], held["block_table"]
    q = torch.randn(5, heads, size + turned)
    rest: Any = {"actual_seq_lengths_query": new, "block_table": table}
    chosen = ops.lightning_indexer(
        q[..., :turned].contiguous(),
        rope,
        torch.rand(5, heads),
        actual_seq_lengths_key=held["kv_lens"],
        sparse_count=9,
        **rest,
    )
    assert chosen.shape == (5, 1, 9) and chosen.dtype == torch.int32
    assert chosen[0, 0].tolist() == [*range(8), -1] and chosen[2, 0].tolist() == [0, *[-1] * 8]
    parts = (q[..., :size].contiguous(), q[..., size:].contiguous())
    more: Any = {"kv_seqlens": held["kv_lens"], "query_rope": parts[1], "key_rope": rope}
    found = ops.sparse_flash_attention(parts[0], latent, latent, chosen, 0.2, **rest, **more)
    whole = torch.cat((latent, rope), -1)
    cu_q = torch.tensor([0, 2, 5])
    expected = fused.paged_prefill_attention(
        q, whole, whole[..., :size], table, cu_q, held["kv_lens"], 3, 9, 0.2
    )
    torch.testing.assert_close(found, expected)


def test_products_of_int8_with_scales_from_before_and_of_experts() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16), torch.randint(-127, 128, (4, 16), dtype=torch.int8)
    scale, offset = torch.tensor([0.04]), torch.tensor([5], dtype=torch.int8)
    bias = -5 * weight.int().sum(-1).int()  # what the offset adds, as checkpoints store it
    deq = torch.rand(4) * 0.04
    found = ops.linear_w8a8_static(x, weight, scale, offset, deq, torch.float32, torch.int8, bias)
    expected = (x @ (weight * (deq / 0.04)[:, None]).t()).float()
    # each number of x is off by half a step of 0.04 at most
    bound = 0.5 * weight.float().abs().sum(-1) * deq
    assert ((found - expected).abs() <= bound * 1.001).all()
    gate_up = torch.randint(-127, 128, (3, 8, 16), dtype=torch.int8)
    down = torch.randint(-127, 128, (3, 16, 4), dtype=torch.int8)
    scales = torch.rand(3, 8, 1) / 500, torch.rand(3, 16, 1) / 500
    weights, experts = torch.rand(3, 2), torch.tensor([[0, 2], [1, 0], [2, 1]])
    rest: Any = (weights, experts, 2, True, None)
    done = ops.fused_moe_w8a8(x[None], gate_up, scales[0], down, scales[1], *rest)
    share = weights / weights.sum(-1, keepdim=True)
    plain = fused.fused_moe(x, gate_up * scales[0], down * scales[1], share, experts)
    assert (done[0] - plain).abs().max() < 0.03 * plain.abs().max()
