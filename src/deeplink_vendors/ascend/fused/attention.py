# SPDX-License-Identifier: Apache-2.0
"""The cache and attention: npu_scatter_pa_kv_cache and npu_fused_infer_attention_score."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from deeplink_vendors.ascend.fused.sdk import FLOATS, HALF, same, torch_npu
from diopi.resolve import limited

RIGHT_DOWN = 3  # the sparse mode in which the last query sees the last key
MASK = 2048  # the size of the mask in this mode, for any lengths


@functools.lru_cache(4)
def causal_mask(device: torch.device) -> Tensor:
    """Create a mask that hides all keys above the diagonal."""
    return torch.ones(MASK, MASK, dtype=torch.bool, device=device).triu(1)


def _fillable(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, k_scales: Tensor | None
) -> bool:
    dense = k_cache.is_contiguous() and v_cache.is_contiguous()
    return k_scales is None and dense and same(FLOATS, k, v, k_cache, v_cache)


@limited(_fillable)
def fill_kv_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> None:
    """Write to the slots; rows with a negative slot are removed first,
    because the op leaves them undefined.
    """
    kept = slots >= 0
    rows = [t[kept].contiguous() for t in (k, v)]
    if rows[0].shape[0]:
        torch_npu.npu_scatter_pa_kv_cache(
            *rows, k_cache, v_cache, slots[kept].int(), cache_mode="Norm"
        )


def _plain(q: Tensor, k: Tensor, v: Tensor, softcap: float, *scores: Tensor | None) -> bool:
    heads = k.shape[-2] and q.shape[-2] // k.shape[-2] <= 64
    sizes = q.shape[-1] == k.shape[-1] == v.shape[-1] <= 512
    return bool(
        same(HALF, q, k, v)
        and heads
        and sizes
        and not softcap
        and not any(t is not None for t in scores)
    )


def _attended(q: Tensor, k: Tensor, v: Tensor, heads: int, shared: int, **how: Any) -> Tensor:
    out: Tensor = torch_npu.npu_fused_infer_attention_score(
        q, k, v, num_heads=heads, num_key_value_heads=shared, **how
    )[0]
    return out


def _causal(causal: bool, device: torch.device) -> dict[str, Any]:
    return {"sparse_mode": RIGHT_DOWN, "atten_mask": causal_mask(device)} if causal else {}


def _packs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_q: int,
    max_kv: int,
    window: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> bool:
    return (
        _plain(q, k, v, softcap, alibi_slopes, sinks)
        and not window
        and max_q <= max_kv
        and max_q > 0
    )


@limited(_packs)
def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_kv: Tensor,
    max_q: int,
    max_kv: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Layout TND: lengths are the ends of the sequences, as numbers on the host."""
    tokens, ends, kv_ends = q.shape[0], cu_q[1:].tolist(), cu_kv[1:].tolist()
    q, k, v = q[: ends[-1]].contiguous(), k.contiguous(), v.contiguous()
    return _padded(
        _attended(
            q,
            k,
            v,
            q.shape[1],
            k.shape[1],
            input_layout="TND",
            scale=scale,
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=kv_ends,
            **_causal(causal, q.device),
        ),
        tokens,
    )


def _padded(out: Tensor, tokens: int) -> Tensor:
    """Append zeros for tokens of no sequence."""
    missing = tokens - out.shape[0]
    return torch.cat((out, out.new_zeros(missing, *out.shape[1:]))) if missing else out


def _held(k_cache: Tensor, v_cache: Tensor, multiple: int) -> bool:
    block = k_cache.shape[1]
    dense = k_cache.is_contiguous() and v_cache.is_contiguous()
    return dense and block % multiple == 0 and block <= 512


def _decodes(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    window: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    k_scales: Tensor | None,
) -> bool:
    plain = _plain(q, k_cache, v_cache, softcap, alibi_slopes, sinks) and q.shape[0] > 0
    return plain and _held(k_cache, v_cache, 16) and not window and k_scales is None


@limited(_decodes)
def paged_decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_lens: Tensor,
    max_kv: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """Layout BSH with one query a row; the cache is [blocks, block size, heads * size]."""
    out = _attended(
        q.flatten(1)[:, None].contiguous(),
        k_cache.flatten(2),
        v_cache.flatten(2),
        q.shape[1],
        k_cache.shape[2],
        input_layout="BSH",
        scale=scale,
        block_table=block_table.int(),
        block_size=k_cache.shape[1],
        actual_seq_lengths_kv=kv_lens.tolist(),
    )
    heads: Tensor = out[:, 0].unflatten(-1, (q.shape[1], -1))
    return heads.masked_fill((kv_lens == 0).to(q.device)[:, None, None], 0.0)


def _paged_prefills(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    max_q: int,
    window: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    k_scales: Tensor | None,
) -> bool:
    plain = _plain(q, k_cache, v_cache, softcap, alibi_slopes, sinks) and max_q > 0
    return plain and _held(k_cache, v_cache, 128) and not window and k_scales is None


@limited(_paged_prefills)
def paged_prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    max_q: int,
    max_kv: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """Layout BSH with padded queries: the op does not document packed queries over blocks."""
    counts = cu_q.diff()
    number = torch.arange(max_q, device=q.device)
    there = number < counts[:, None]
    token = (cu_q[:-1, None] + number).clamp(max=q.shape[0] - 1).long()
    made = _attended(
        q[token].flatten(2).contiguous(),
        k_cache.flatten(2),
        v_cache.flatten(2),
        q.shape[1],
        k_cache.shape[2],
        input_layout="BSH",
        scale=scale,
        block_table=block_table.int(),
        block_size=k_cache.shape[1],
        actual_seq_lengths=counts.tolist(),
        actual_seq_lengths_kv=kv_lens.tolist(),
        **_causal(causal, q.device),
    )
    out = torch.zeros_like(q)
    out[token[there]] = made.unflatten(-1, (q.shape[1], -1))[there]
    return out


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    softcap: float,
    sinks: Tensor | None,
) -> bool:
    masked = mask is None or (mask.dtype == torch.bool and not causal and mask.shape[1:2] == (1,))
    return _plain(q, k, v, softcap, sinks) and masked and q.numel() > 0


@limited(_dense)
def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Layout BSND; true in a mask means hidden for this op."""
    how = _causal(causal, q.device)
    if mask is not None:
        seen = mask.expand(q.shape[0], 1, q.shape[1], k.shape[1])
        how = {"atten_mask": (~seen).contiguous()}
    q, k, v = (t.contiguous() for t in (q, k, v))
    out = _attended(q, k, v, q.shape[2], k.shape[2], input_layout="BSND", scale=scale, **how)
    if mask is not None:
        out = out.masked_fill(~seen.any(-1).transpose(1, 2)[..., None], 0.0)
    return out
