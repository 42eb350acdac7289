# SPDX-License-Identifier: Apache-2.0
"""Attention by flash_attn, which MetaX builds for its chips: arguments are mapped.

The other ops run by their reference.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from diopi.resolve import limited
from dlinfer.layout import Layout

flash_attn: Any = importlib.import_module("flash_attn")

CACHE = Layout("NBHD", block_sizes=(256,))
NOTE = "tested against a fake of flash_attn, not on hardware"
HALF = (torch.float16, torch.bfloat16)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    sizes = q.shape[-1] == k.shape[-1] == v.shape[-1] <= 256
    return sizes and q.dtype == k.dtype == v.dtype and q.dtype in HALF and q.numel() > 0


def _seen(causal: bool, window: int, softcap: float, slopes: Tensor | None) -> dict[str, Any]:
    """Return the options: flash_attn counts keys before and after a query,
    without its own; -1 is all.
    """
    before = window - 1 if window else -1
    return {
        "causal": causal,
        "window_size": (before, before if not causal else (0 if window else -1)),
        "softcap": softcap,
        "alibi_slopes": None if slopes is None else slopes.float(),
    }


def _packs(q: Tensor, k: Tensor, v: Tensor, max_q: int, sinks: Tensor | None) -> bool:
    return sinks is None and _plain(q, k, v) and max_q > 0


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
    """Call flash_attn_varlen_func."""
    out: Tensor = flash_attn.flash_attn_varlen_func(
        q,
        k,
        v,
        cu_q.int(),
        cu_kv.int(),
        max_q,
        max_kv,
        softmax_scale=scale,
        **_seen(causal, window, softcap, alibi_slopes),
    )
    return out


def _held(k_cache: Tensor, v_cache: Tensor) -> bool:
    return k_cache.shape[1] % 256 == 0 and k_cache.stride(3) == v_cache.stride(3) == 1


def _paged_prefills(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, max_q: int, sinks: Tensor | None
) -> bool:
    return sinks is None and _plain(q, k_cache, v_cache) and _held(k_cache, v_cache) and max_q > 0


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
    """Call flash_attn_varlen_func with a block table; it needs the ends of packed keys."""
    ends = torch.nn.functional.pad(kv_lens.int().cumsum(0, dtype=torch.int32), (1, 0))
    out: Tensor = flash_attn.flash_attn_varlen_func(
        q,
        k_cache,
        v_cache,
        cu_q.int(),
        ends,
        max_q,
        max_kv,
        softmax_scale=scale,
        block_table=block_table.int(),
        **_seen(causal, window, softcap, alibi_slopes),
    )
    return out


def _decodes(q: Tensor, k_cache: Tensor, v_cache: Tensor, sinks: Tensor | None) -> bool:
    return sinks is None and _plain(q, k_cache, v_cache) and _held(k_cache, v_cache)


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
    """Call flash_attn_with_kvcache, one query a row."""
    out: Tensor = flash_attn.flash_attn_with_kvcache(
        q[:, None],
        k_cache,
        v_cache,
        cache_seqlens=kv_lens.int(),
        block_table=block_table.int(),
        softmax_scale=scale,
        **_seen(True, window, softcap, alibi_slopes),
    )
    return out[:, 0]


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None) -> bool:
    return sinks is None and _plain(q, k, v) and mask is None


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
    """Call flash_attn_func."""
    out: Tensor = flash_attn.flash_attn_func(
        q, k, v, softmax_scale=scale, **_seen(causal, 0, softcap, None)
    )
    return out
