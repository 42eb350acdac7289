# SPDX-License-Identifier: Apache-2.0
"""Attention: over packed sequences, over a cache in blocks, and dense.

Dimensions are [tokens, heads, size]; keys and values may have fewer heads, which queries share.
The last query of a sequence sees its last key. A query that sees no key gives zeros. Cache memory
beyond a sequence's length is never read: it may be NaN.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlinfer.fused.cache import FLOAT8, restored
from dlinfer.op import op, wide

# Visibility of keys, equal in every op: `window` is the number of visible keys, to and with the
# query's own, of a causal op (0: all); scores become softcap * tanh(score / softcap) unless it is
# 0; alibi_slopes [heads] times the distance is subtracted. sinks [heads] are scores of one more
# key, whose value is zero: they count in the sum of the exponentials alone.
SEEN = "int window=0, float softcap=0.0, Tensor? alibi_slopes=None, Tensor? sinks=None"
QUANTISED = (
    "Tensor? k_scales=None, Tensor? v_scales=None, Tensor? k_zeros=None, Tensor? v_zeros=None"
)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    distance: Tensor,
    hidden: Tensor,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q @ k.T * scale …) @ v of [batch, tokens, heads, size], in float32 or wider.

    distance [batch, tokens, keys] is the number of tokens from a key to a query; hidden, of equal
    shape, marks the invisible keys; a bias [batch, heads, tokens, keys] is added.
    """
    batch, tokens, heads, size = q.shape
    shared = k.shape[2]
    group = heads // shared
    queries = wide(q).reshape(batch, tokens, shared, group, size)
    scores = torch.einsum("btkgd,bskd->bkgts", queries, wide(k)) * scale
    scores = scores.flatten(1, 2)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(scores.dtype)[None, :, None, None]
        scores = scores - slopes * distance[:, None].abs()
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    nothing = hidden.all(-1)[:, None, :, None]
    scores = scores.masked_fill(nothing, 0.0)
    if sinks is not None:
        more = wide(sinks).to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, more), -1)
    weights = scores.softmax(-1)[..., : k.shape[1]].masked_fill(nothing, 0.0)
    parts = weights.unflatten(1, (shared, group))
    out = torch.einsum("bkgts,bskd->btkgd", parts, wide(v))
    return out.reshape(batch, tokens, heads, v.shape[-1]).to(q.dtype).contiguous()


def hides(distance: Tensor, causal: bool, window: int) -> Tensor:
    """Return which keys are hidden from a query, by their distance before it."""
    hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    return hidden | (distance.abs() >= window) if window else hidden


def _distance(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the distance of each key before each query, with the last of both at one position."""
    rows = torch.arange(queries, device=device)[:, None] + (keys - queries)
    return rows - torch.arange(keys, device=device)


def _bounds(cumulative: Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(cumulative.tolist()))


def _as_values(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@op(
    "Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_kv, SymInt max_q, SymInt max_kv, "
    f"float scale, bool causal=True, {SEEN}",
    fake=_as_values,
)
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
    """Attention inside each packed sequence; cu_q and cu_kv [sequences + 1] are their limits.

    max_q and max_kv are the longest lengths, or more: a kernel sizes its grid by them.
    """
    del max_q, max_kv
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    for (q0, q1), (k0, k1) in zip(_bounds(cu_q), _bounds(cu_kv), strict=True):
        if q1 > q0:
            far = _distance(q1 - q0, k1 - k0, q.device)[None]
            out[q0:q1] = attend(
                q[None, q0:q1],
                k[None, k0:k1],
                v[None, k0:k1],
                scale,
                far,
                hides(far, causal, window),
                softcap,
                alibi_slopes,
                sinks=sinks,
            )[0]
    return out


def _gathered(cache: Tensor, block_table: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Gather [rows, longest, heads, size] from a cache; zeros where a row is shorter."""
    tokens = torch.arange(longest, device=cache.device)
    size = cache.shape[1]
    there = tokens < lengths[:, None]
    blocks = block_table[:, tokens // size] if longest else block_table[:, :0]
    blocks = torch.where(there, blocks, 0).long()
    places = (tokens % size).expand_as(blocks)
    if cache.dtype == FLOAT8:  # as bytes: torch indexes few types of 8 bits
        found = wide(cache.view(torch.uint8)[blocks, places].view(FLOAT8))
    else:
        found = cache[blocks, places]
    return torch.where(there[..., None, None], found, torch.zeros_like(found))


@op(
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor kv_lens, "
    f"SymInt max_kv, float scale, {SEEN}, {QUANTISED}",
    fake=_as_values,
)
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
    """Attention of one query per row, q [rows, heads, size], over the row's kv_lens cached keys.

    block_table [rows, blocks] holds the cache's block for each part of a row; max_kv is the largest
    of kv_lens, or more. A row of length 0 gives zeros.
    """
    lengths = kv_lens.long()
    longest = min(max_kv, block_table.shape[1] * k_cache.shape[1])
    keys = restored(_gathered(k_cache, block_table, lengths, longest), k_scales, k_zeros)
    values = restored(_gathered(v_cache, block_table, lengths, longest), v_scales, v_zeros)
    far = (lengths[:, None] - 1 - torch.arange(longest, device=q.device))[:, None]
    hidden = hides(far, True, window)
    out = attend(q[:, None], keys, values, scale, far, hidden, softcap, alibi_slopes, sinks=sinks)
    return out[:, 0]


@op(
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_q, Tensor kv_lens, "
    f"SymInt max_q, SymInt max_kv, float scale, bool causal=True, {SEEN}, {QUANTISED}",
    fake=_as_values,
)
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
    """Attention of packed queries of several sequences, q [tokens, heads, size], over cached keys.

    The queries are the last ones of their sequence: their own keys are in the cache already.
    """
    del max_q, max_kv
    out = q.new_zeros((*q.shape[:-1], v_cache.shape[-1]))
    for row, (q0, q1) in enumerate(_bounds(cu_q)):
        length = int(kv_lens[row])
        if q1 == q0 or not length:
            continue
        table, known = block_table[row : row + 1], kv_lens[row : row + 1]
        far = _distance(q1 - q0, length, q.device)[None]
        out[q0:q1] = attend(
            q[None, q0:q1],
            restored(_gathered(k_cache, table, known, length), k_scales, k_zeros),
            restored(_gathered(v_cache, table, known, length), v_scales, v_zeros),
            scale,
            far,
            hides(far, causal, window),
            softcap,
            alibi_slopes,
            sinks=sinks,
        )[0]
    return out


def is_torchs(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    softcap: float,
    sinks: Tensor | None,
) -> bool:
    """Whether torch's own attention applies: no softcap, no sinks, and its first query sees the
    first key.
    """
    if sinks is not None:
        return False
    return not softcap and not (causal and (mask is not None or q.shape[1] != k.shape[1]))


def by_torch(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """Call torch's own attention; a query whose mask of bools hides all keys gives NaN."""
    shared = q.shape[2] != k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out: Tensor = F.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared
    )
    return out.transpose(1, 2).contiguous()


def zero_where_hidden(out: Tensor, mask: Tensor) -> Tensor:
    """Set the results of queries to zero for which a mask of bools hides all keys."""
    none = ~mask.any(-1).expand(out.shape[0], out.shape[2], out.shape[1]).transpose(1, 2)
    return out.masked_fill(none[..., None], 0.0)


def _in_graphs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Any:
    """Call torch's own attention, which compilers recognise; not with a mask of bools."""
    if not is_torchs(q, k, mask, causal, softcap, sinks) or (
        mask is not None and mask.dtype == torch.bool
    ):
        return NotImplemented
    return by_torch(q, k, v, mask, causal, scale)


@op(
    "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, float softcap=0.0, "
    "Tensor? sinks=None",
    fake=_as_values,
    in_graphs=_in_graphs,
)
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
    """Attention over [batch, tokens, heads, size], for images, or a model without a cache.

    A mask expands to [batch, heads, tokens, keys]: of bools, true is visible; of numbers, it is
    added.
    """
    far = _distance(q.shape[1], k.shape[1], q.device)[None].expand(q.shape[0], -1, -1)
    bias = None
    if mask is not None:
        bias = wide(mask)
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(mask, dtype=wide(q).dtype).masked_fill(~mask, -torch.inf)
    out = attend(q, k, v, scale, far, hides(far, causal, 0), softcap, bias=bias, sinks=sinks)
    if mask is not None and mask.dtype == torch.bool:
        out = zero_where_hidden(out, mask)
    return out
