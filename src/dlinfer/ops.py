# SPDX-License-Identifier: Apache-2.0
"""The published call signatures, which frameworks for the original interface call.

Each binds to an op of `dlinfer.fused` and has its meaning: only arguments that the op writes are
changed, lengths are plain or cumulative as in each call, a cache is [blocks, block size, heads,
size] or, recognised by its block size, [blocks, heads, block size, size]. Where a call changed
between releases of a framework, the number of arguments selects the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer import fused

# Calls of released frameworks that are not offered, with the reason.
LEFT_OUT = {
    "fused_attention": "a helper of the first adaptor of transformers",
    "fill_contiguous_kvcache": "a helper of the first adaptor of transformers",
    "get_cache_len": "a helper of the first adaptor of transformers",
    "incre_flash_attention": "frameworks keep their cache in blocks",
    "transdata": "no op wants weights in a vendor's own order",
}


def __getattr__(name: str) -> Any:
    why = LEFT_OUT.get(name)
    raise AttributeError(f"dlinfer.ops has no {name}" + (f": {why}" if why else ""))


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Call `fused.rms_norm`."""
    return _one(fused.rms_norm(hidden_states, weight, epsilon))


def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Call `fused.add_rms_norm`."""
    return _two(fused.add_rms_norm(hidden_states, residual, weight, epsilon))


def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *written: None
) -> tuple[Tensor, Tensor]:
    """Rotate query and key [..., heads, size] by halves; cos and sin [..., turned].

    The form with two more arguments, both None, writes query and key in place.
    """
    angles = (t.reshape(-1, t.shape[-1]) for t in (cos, sin))
    q, k = _two(fused.rotary(_heads(query), _heads(key), *angles))
    if written:
        return query.copy_(q.view(query.shape)), key.copy_(k.view(key.shape))
    return q.view(query.shape), k.view(key.shape)


def apply_rotary_pos_emb_interleaved(
    x: Tensor, cos: Tensor, sin: Tensor, return_native_layout: bool = True
) -> Tensor:
    """Rotate pairs of adjacent elements of x [tokens, heads, 1, size]; cos and sin [tokens, 1, 1,
    size] hold the angles of the pairs twice, one half after the other.

    With `return_native_layout` the result has the first elements of all pairs, then the second
    ones; otherwise pairs stay adjacent.
    """
    if x.shape[1] < 2:
        raise DeeplinkError(
            _(
                "apply_rotary_pos_emb_interleaved: {count} heads; allowed: those of queries and "
                "keys, at least 2."
            ).format(count=x.shape[1])
        )
    angles = (t.reshape(-1, t.shape[-1]) for t in (cos, sin))
    halves = x.squeeze(2).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    turned = torch.cat(_two(fused.rotary(halves[:, :-1], halves[:, -1:], *angles)), 1)
    if not return_native_layout:
        turned = turned.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return turned.view(x.shape)


def silu_and_mul(x: Tensor, dim: int = -1) -> Tensor:
    """Call `fused.silu_and_mul`, along any dimension."""
    return _one(fused.silu_and_mul(x.movedim(dim, -1))).movedim(-1, dim)


def fill_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_indices: Tensor,
    k_scales_zeros: Sequence[Tensor | None] = (),
    v_scales_zeros: Sequence[Tensor | None] = (),
    quant_bits: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """Write to the caches, and return them; with quant_bits, by (scales, zeros) of each."""
    scales: list[Tensor | None] = [None] * 4
    if quant_bits:
        (scales[0], scales[2]), (scales[1], scales[3]) = k_scales_zeros, v_scales_zeros
    fused.fill_kv_cache(key, value, key_cache, value_cache, kv_indices.reshape(-1), *scales)
    return key_cache, value_cache


# The positional arguments after query, key, value, by release of LMDeploy. A mask that is passed by
# its name counts as the last.
_CACHES = ("key_cache", "value_cache")
_HEADS = ("num_q_heads", "num_kv_heads", "attn_mask")
PREFILL: dict[int, tuple[str, ...]] = {
    9: (*_CACHES, "q_start_loc", "q_seq_len", "kv_seq_len", "max_q_seq_len", *_HEADS),  # to 0.17
    8: (*_CACHES, "q_seq_len", "kv_seq_len", "max_q_seq_len", *_HEADS),  # 0.18
    6: ("q_start_loc", "q_seq_len", "max_q_seq_len", *_HEADS),  # the first releases
}
_BLOCKS = (*_CACHES, "block_table", "block_size")
_LONGEST = ("max_q_seq_len", "max_kv_seq_len", *_HEADS)
PAGED_PREFILL: dict[int, tuple[str, ...]] = {
    13: (*_BLOCKS, "q_start_loc", "q_seq_len", "kv_seq_len", "cu_seq_lens_kv", *_LONGEST),
    11: (*_BLOCKS, "q_seq_len", "kv_seq_len", *_LONGEST),  # 0.18: q_seq_len is cumulative
}
FORMS = {"prefill_attention": PREFILL, "paged_prefill_attention": PAGED_PREFILL}


def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    attn_mask: Sequence[Tensor | None] | None = None,
    softmax_scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    attn_output: Tensor | None = None,
    actual_seq_lengths_cpu: Tensor | None = None,
) -> Tensor:
    """Attention inside packed sequences: causal, as in a language model; not causal where neither
    caches nor a mask are passed, as for images.
    """
    rest = rest if attn_mask is None else (*rest, attn_mask)
    given = _named("prefill_attention", PREFILL, rest)
    causal = given.get("key_cache") is not None or bool(given["attn_mask"])
    ends = actual_seq_lengths_cpu
    bounds = _from_zero(given["q_seq_len"].cumsum(0) if ends is None else ends, query)
    longest = given["max_q_seq_len"] or int((bounds[1:] - bounds[:-1]).max())
    done = fused.prefill_attention(
        _heads(query),
        _heads(key),
        _heads(value),
        bounds,
        bounds,
        longest,
        longest,
        _scale(softmax_scale, query),
        causal,
        alibi_slopes=alibi_slopes,
    )
    return _put(done, attn_output)


def paged_prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    head_size_v: int | None = None,
    softmax_scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
) -> Tensor:
    """Attention of new tokens over the cache, which holds their own keys and values already."""
    del key, value, head_size_v, kv_scales, kv_zeros
    _not_quantised("paged_prefill_attention", quant_bits)
    given = _named("paged_prefill_attention", PAGED_PREFILL, rest)
    lengths = given["q_seq_len"]
    bounds = _from_zero(lengths.cumsum(0) if "q_start_loc" in given else lengths, query)
    done = fused.paged_prefill_attention(
        _heads(query),
        *_cached(given["key_cache"], given["value_cache"], given["block_size"]),
        given["block_table"],
        bounds,
        given["kv_seq_len"].to(query.device),
        given["max_q_seq_len"] or query.shape[0],
        given["max_kv_seq_len"] or int(given["kv_seq_len"].max()),
        _scale(softmax_scale, query),
        alibi_slopes=alibi_slopes,
    )
    return _put(done, attn_output)


def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    block_size: int,
    q_seq_len: Tensor | None,
    kv_seq_len: Tensor,
    max_kv_seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_size_v: int | None = None,
    softmax_scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
) -> Tensor:
    """Call `fused.paged_decode_attention` without the arguments that the tensors determine."""
    del q_seq_len, num_q_heads, num_kv_heads, head_size_v, kv_scales, kv_zeros
    _not_quantised("paged_decode_attention", quant_bits)
    done = fused.paged_decode_attention(
        _heads(query),
        *_cached(key_cache, value_cache, block_size),
        block_table,
        kv_seq_len.to(query.device),
        max_kv_seq_len or int(kv_seq_len.max()),
        _scale(softmax_scale, query),
        alibi_slopes=alibi_slopes,
    )
    return _put(done, attn_output)


def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int,
) -> Tensor:
    """Call `fused.lightning_indexer` for the keys of a cache; the lengths of queries are
    cumulative, the result is [tokens, 1, sparse_count].
    """
    found = fused.lightning_indexer(
        _heads(query),
        key,
        weights.reshape(-1, weights.shape[-1]),
        block_table,
        _from_zero(actual_seq_lengths_query, query),
        actual_seq_lengths_key.to(query.device),
        block_table.shape[1] * key.shape[1],
        sparse_count,
    )
    return _one(found)[:, None]


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    softmax_scale: float,
    *,
    block_table: Tensor,
    actual_seq_lengths_query: Tensor,
    kv_seqlens: Tensor,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
) -> Tensor:
    """Call `fused.sparse_flash_attention` for caches of keys and values; the lengths of queries
    are cumulative, sparse_indices are [tokens, 1, chosen].
    """
    done = fused.sparse_flash_attention(
        _heads(query),
        key,
        value,
        sparse_indices.reshape(-1, sparse_indices.shape[-1]),
        block_table,
        _from_zero(actual_seq_lengths_query, query),
        kv_seqlens.to(query.device),
        softmax_scale,
        None if query_rope is None else _heads(query_rope),
        key_rope,
    )
    return _one(done).view(*query.shape[:-1], value.shape[-1])


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    all_reduce: bool = False,
    group: str = "",
) -> Tensor:
    """Call `fused.linear`; with all_reduce, summed over the named group,
    or over the default one.
    """
    return _one(fused.linear(x, weight, bias, (group or _default_group()) if all_reduce else ""))


def moe_gating_topk_softmax(
    router_logits: Tensor, topk: int, moe_metadata: Any = None
) -> tuple[Tensor, Tensor]:
    """Return weights by softmax over all experts;
    a bool in place of the metadata normalises them.
    """
    return _two(fused.moe_gating(router_logits, topk, moe_metadata is True))


def fused_moe(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    down_weights: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: Any = None,
    chunked_moe_layout: Any = None,
) -> Tensor:
    """Call `fused.fused_moe` on one device:
    the metadata on the distribution of experts is ignored.
    """
    del topk, moe_metadata, chunked_moe_layout
    shares = _to_one(topk_weights) if renormalize else topk_weights
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    done = _one(fused.fused_moe(rows, gate_up_weights, down_weights, shares, topk_ids))
    return done.view(hidden_states.shape)


def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: Any = None,
) -> Tensor:
    """Call `fused.fused_moe_w8a8` on one device, with weights and scales by output channel."""
    del topk, moe_metadata
    done = fused.fused_moe_w8a8(
        hidden_states.reshape(-1, hidden_states.shape[-1]),
        gate_up_weights,
        gate_up_scales,
        down_weights,
        down_scales,
        _to_one(topk_weights) if renormalize else topk_weights,
        topk_ids,
    )
    return _one(done).view(hidden_states.shape)


def _to_one(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def dynamic_quant(
    x: Tensor, quant_dtype: torch.dtype = torch.int8, quant_granularity: str = "PER_TOKEN"
) -> tuple[Tensor, Tensor]:
    """Call `fused.dynamic_quant`: int8, by token."""
    _only_int8("dynamic_quant", quant_dtype)
    if quant_granularity != "PER_TOKEN":
        raise DeeplinkError(f"dynamic_quant: {quant_granularity!r}; allowed: PER_TOKEN.")
    return _two(fused.dynamic_quant(x))


def per_token_quant_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Call `dynamic_quant`, by its first published name."""
    return _two(fused.dynamic_quant(x))


def linear_w8a8(
    a: Tensor,
    b: Tensor,
    rms_scale: Tensor,
    linear_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype = torch.int8,
    bias: Tensor | None = None,
) -> Tensor:
    """Call `fused.linear_w8a8`; the result is of the requested type."""
    _only_int8("linear_w8a8", quant_dtype)
    return _one(fused.linear_w8a8(a, b, rms_scale, linear_scale, out_dtype, bias))


def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype = torch.int8,
    quant_bias: Tensor | None = None,
) -> Tensor:
    """Call `fused.linear_w8a8_static`: x is quantised by scales that are known before."""
    _only_int8("linear_w8a8_static", quant_dtype)
    done = fused.linear_w8a8_static(
        x, weight, input_scale, input_offset, deq_scale, out_dtype, quant_bias
    )
    return _one(done)


def smooth_quant_matmul(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    all_reduce: bool = False,
) -> Tensor:
    """Call `linear_w8a8`, by its first published name."""
    done = _one(fused.linear_w8a8(a, b, a_scale, b_scale, out_dtype, bias))
    if all_reduce:
        torch.distributed.all_reduce(done)
    return done


def rms_norm_w8a8(
    hidden_states: Tensor,
    weight: Tensor,
    epsilon: float,
    quant_dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor]:
    """Call `fused.rms_norm_w8a8`."""
    _only_int8("rms_norm_w8a8", quant_dtype)
    return _two(fused.rms_norm_w8a8(hidden_states, weight, epsilon))


def add_rms_norm_w8a8(
    hidden_states: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    quant_dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call `fused.add_rms_norm_w8a8`."""
    _only_int8("add_rms_norm_w8a8", quant_dtype)
    numbers, scale, total = fused.add_rms_norm_w8a8(hidden_states, residual, weight, epsilon)
    return numbers, scale, total


def weight_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    all_reduce: bool = False,
    group_size: int = 0,
) -> Tensor:
    """Call `fused.weight_quant_matmul` for x2 [in, out] of int8; scale,
    offset [in / group_size, out].
    """
    turned = None if offset is None else _columns(offset).t()
    weight, scales = x2.t().contiguous(), _columns(scale).t()
    done = _one(fused.weight_quant_matmul(x1, weight, scales, turned, bias, group_size))
    if all_reduce:
        torch.distributed.all_reduce(done)
    return done


def _columns(t: Tensor) -> Tensor:
    return t if t.dim() == 2 else t[None]


def _one(result: Any) -> Tensor:
    found: Tensor = result
    return found


def _two(result: Any) -> tuple[Tensor, Tensor]:
    first, second = result
    return first, second


def _named(op: str, forms: dict[int, tuple[str, ...]], rest: tuple[Any, ...]) -> dict[str, Any]:
    """Name the arguments after query, key and value, by the form with this number of arguments."""
    if len(rest) not in forms:
        known = "; ".join(f"query, key, value, {', '.join(names)}" for names in forms.values())
        raise TypeError(f"{op} takes by position: {known}; got {3 + len(rest)} arguments")
    return dict(zip(forms[len(rest)], rest, strict=True))


def _scale(given: float | None, query: Tensor) -> float:
    return float(given or query.shape[-1] ** -0.5)


def _heads(t: Tensor) -> Tensor:
    """Reshape to [tokens, heads, size]."""
    return t.reshape(-1, *t.shape[-2:])


def _from_zero(ends: Tensor, like: Tensor) -> Tensor:
    """Prepend 0 to cumulative lengths, on the device of the other tensors."""
    return torch.nn.functional.pad(ends.to(like.device), (1, 0))


def _cached(key_cache: Tensor, value_cache: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return caches with positions before heads, as in the ops, for either order in memory."""
    if key_cache.shape[1] != block_size and key_cache.shape[2] == block_size:
        return key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    return key_cache, value_cache


def _put(done: Any, attn_output: Tensor | None) -> Tensor:
    if attn_output is None:
        return _one(done)
    return attn_output.copy_(_one(done).view(attn_output.shape))


def _default_group() -> str:
    found: str = torch.distributed.group.WORLD.group_name  # type: ignore[union-attr]
    return found


def _not_quantised(op: str, quant_bits: int | None) -> None:
    if quant_bits:
        raise DeeplinkError(
            _("{op}: a cache of {quant_bits} bits is not read by the published call.").format(
                op=op, quant_bits=quant_bits
            ),
            _("call torch.ops.dlinfer.{op} with k_scales and v_scales.").format(op=op),
        )


def _only_int8(op: str, quant_dtype: torch.dtype) -> None:
    if quant_dtype != torch.int8:
        raise DeeplinkError(f"{op}: quantises to {quant_dtype}; allowed: torch.int8.")
