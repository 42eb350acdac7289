# SPDX-License-Identifier: Apache-2.0
"""Fused ops by torch_mlu_ops, the library that Cambricon ships with torch_mlu: arguments are
mapped.

Its calls follow the public documentation of release 1; they are not verified on the library itself.
Missing ops run by their reference.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from diopi.resolve import limited
from dlinfer.layout import Layout

tmo: Any = importlib.import_module("torch_mlu_ops")

CACHE = Layout("NHBD", block_sizes=(16,))
NOTE = "tested against a fake of torch_mlu_ops, not on hardware"
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _same(*tensors: Tensor) -> bool:
    kinds = {t.dtype for t in tensors}
    return len(kinds) == 1 and kinds <= set(FLOATS) and tensors[0].numel() > 0


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> Tensor | tuple[Tensor, Tensor]:
    """Call fused_rms_norm(input, residual, gamma, beta, bias, eps, also the sum)."""
    shape, size = x.shape, x.shape[-1]
    given = [t if t is None else t.reshape(-1, size).contiguous() for t in (x, residual)]
    made = tmo.fused_rms_norm(*given, weight, None, None, eps, residual is not None)
    if residual is None:
        normed: Tensor = made
        return normed.view(shape)
    return made[0].view(shape), made[1].view(shape)


@limited(lambda x, weight: _same(x, weight))
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Any:
    return _norm(x, None, weight, eps)


@limited(lambda x, residual, weight: _same(x, residual, weight) and x.shape == residual.shape)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Any:
    return _norm(x, residual, weight, eps)


def _gated(x: Tensor, mode: str) -> Tensor:
    """Call active(input, mode, gated): the gate is the first half."""
    made: Tensor = tmo.active(x.reshape(-1, x.shape[-1]).contiguous(), mode, True)
    return made.view(*x.shape[:-1], x.shape[-1] // 2)


@limited(lambda x: _same(x))
def silu_and_mul(x: Tensor) -> Tensor:
    return _gated(x, "silu")


@limited(lambda x, approximate: _same(x) and approximate == "none")
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return _gated(x, "gelu")


@limited(lambda q, k, cos, sin: _same(q, k, cos, sin))
def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Call apply_rotary for one sequence, with a table of angles whose row n is token n's."""
    tokens, turned = cos.shape
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=q.device)
    places = torch.arange(tokens, dtype=torch.int32, device=q.device)

    def one(x: Tensor) -> Tensor:
        part: Tensor = tmo.apply_rotary(
            x[..., :turned].contiguous(),
            sin.contiguous(),
            cos.contiguous(),
            places,
            bounds,
            interleaved,
            True,  # each token has its position
            False,  # no angles by length
            tokens,
        )
        return torch.cat((part, x[..., turned:]), -1) if turned < x.shape[-1] else part

    return one(q), one(k)


def _by_head(cache: Tensor) -> Tensor:
    """Permute to [blocks, heads, positions, size], without a copy."""
    return cache.transpose(1, 2)


def _held(k_cache: Tensor, v_cache: Tensor) -> bool:
    dense = _by_head(k_cache).is_contiguous() and _by_head(v_cache).is_contiguous()
    return dense and k_cache.shape[1] == CACHE.block_sizes[0]


def _fillable(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, k_scales: Tensor | None
) -> bool:
    return k_scales is None and _same(k, v, k_cache, v_cache) and _held(k_cache, v_cache)


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
    """Call reshape_paged_cache; rows with a negative slot are removed first."""
    kept = slots >= 0
    rows = [t[kept].contiguous() for t in (k, v)]
    if rows[0].shape[0]:
        tmo.reshape_paged_cache(*rows, _by_head(k_cache), _by_head(v_cache), slots[kept].int())


def _seen(window: int, causal: bool) -> tuple[int, int]:
    """Return the numbers of visible keys before and after a query, without its own; -1 is all."""
    before = window - 1 if window else -1
    return before, -1 if causal or not window else before


def _plain(q: Tensor, k: Tensor, v: Tensor, softcap: float) -> bool:
    sizes = q.shape[-1] == k.shape[-1] == v.shape[-1]
    return _same(q, k, v) and q.dtype != torch.float32 and sizes and not softcap


def _packs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_q: int,
    max_kv: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> bool:
    return _plain(q, k, v, softcap) and alibi_slopes is sinks is None and 0 < max_q <= max_kv


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
    """Call flash_attention, which writes into its argument; tokens of no sequence stay zero."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    tmo.flash_attention(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        out,
        cu_q.int(),
        cu_kv.int(),
        None,
        None,
        max_q,
        max_kv,
        scale,
        causal,
        *_seen(window, causal),
    )
    return out


def _decodes(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    k_scales: Tensor | None,
) -> bool:
    return (
        k_scales is None
        and alibi_slopes is sinks is None
        and _plain(q, k_cache, v_cache, softcap)
        and _held(k_cache, v_cache)
    )


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
    """Call single_query_cached_kv_attn, q [rows, 1, heads, size]; a row of length 0 stays zero."""
    out = torch.zeros_like(q[:, None], memory_format=torch.contiguous_format)
    tmo.single_query_cached_kv_attn(
        q[:, None].contiguous(),
        _by_head(k_cache),
        _by_head(v_cache),
        out,
        block_table.int(),
        kv_lens.int(),
        None,
        None,
        None,
        max_kv,
        *_seen(window, True),
        scale,
    )
    return torch.where(kv_lens[:, None, None] > 0, out[:, 0], 0.0)


@limited(lambda x, weight, group: _same(x, weight) and not group)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: str = "") -> Tensor:
    """Call matmul(a, b, bias), with b in the layout of a layer's weight."""
    made: Tensor = tmo.matmul(x.reshape(-1, x.shape[-1]).contiguous(), weight.contiguous(), bias)
    return made.view(*x.shape[:-1], -1)
