# SPDX-License-Identifier: Apache-2.0
"""Attention: over packed sequences, over a cache in blocks, and dense.

Dimensions are [tokens, heads, size]; keys and values may have fewer heads, which queries share.
The last query of a sequence sees its last key. A query that sees no key gives zeros. What lies in a
cache beyond a sequence's length is never read: it may be NaN.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlinfer.fused.cache import restored
from dlinfer.op import op, wide

# How keys are seen, the same in every op: `window` is how many, to and with the query's own, of a
# causal one (0: all); scores become softcap * tanh(score / softcap) unless it is 0; alibi_slopes
# [heads] times the distance is taken from them.
SEEN = "int window=0, float softcap=0.0, Tensor? alibi_slopes=None"
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
) -> Tensor:
    """softmax(q @ k.T * scale …) @ v of [batch, tokens, heads, size], in float32 at least.

    distance [batch, tokens, keys] is how far a key lies before a query; hidden, of the same size,
    says which are not seen; a bias [batch, heads, tokens, keys] is added.
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
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    parts = weights.unflatten(1, (shared, group))
    out = torch.einsum("bkgts,bskd->btkgd", parts, wide(v))
    return out.reshape(batch, tokens, heads, v.shape[-1]).to(q.dtype).contiguous()


def hides(distance: Tensor, causal: bool, window: int) -> Tensor:
    """Which keys a query does not see, by how far they lie before it."""
    hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    return hidden | (distance.abs() >= window) if window else hidden


def _distance(queries: int, keys: int, device: torch.device) -> Tensor:
    """How far each key lies before each query, when the last of both are at one place."""
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
) -> Tensor:
    """Attention inside each packed sequence; cu_q and cu_kv [sequences + 1] are their bounds.

    max_q and max_kv are the longest ones' lengths, or more: a kernel sizes its grid by them.
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
            )[0]
    return out


def _gathered(cache: Tensor, block_table: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """[rows, longest, heads, size] of a cache; zeros where a row is shorter."""
    tokens = torch.arange(longest, device=cache.device)
    size = cache.shape[1]
    there = tokens < lengths[:, None]
    blocks = block_table[:, tokens // size] if longest else block_table[:, :0]
    blocks = torch.where(there, blocks, 0).long()
    found = cache[blocks, (tokens % size).expand_as(blocks)]
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
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """One query for each row, q [rows, heads, size], over the row's kv_lens cached keys.

    block_table [rows, blocks] says which block of the cache holds which part; max_kv is the largest
    of kv_lens, or more. A row of length 0 gives zeros.
    """
    lengths = kv_lens.long()
    longest = min(max_kv, block_table.shape[1] * k_cache.shape[1])
    keys = restored(_gathered(k_cache, block_table, lengths, longest), k_scales, k_zeros)
    values = restored(_gathered(v_cache, block_table, lengths, longest), v_scales, v_zeros)
    far = (lengths[:, None] - 1 - torch.arange(longest, device=q.device))[:, None]
    hidden = hides(far, True, window)
    return attend(q[:, None], keys, values, scale, far, hidden, softcap, alibi_slopes)[:, 0]


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
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> Tensor:
    """Packed queries of several sequences, q [tokens, heads, size], each over its cached keys.

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
        )[0]
    return out


def _by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
) -> Any:
    """torch's own attention, which compilers know: no softcap, and of bools it gives NaN for a
    query that sees nothing; its first query sees the first key.
    """
    uneven = causal and (mask is not None or q.shape[1] != k.shape[1])
    if softcap or uneven or (mask is not None and mask.dtype == torch.bool):
        return NotImplemented
    shared = q.shape[2] != k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared)
    return out.transpose(1, 2).contiguous()


@op(
    "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, float softcap=0.0",
    fake=_as_values,
    in_graphs=_by_torch,
)
def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Attention over [batch, tokens, heads, size], as images have it, or a model without a cache.

    A mask expands to [batch, heads, tokens, keys]: of bools, true is seen; of numbers, it is added.
    """
    far = _distance(q.shape[1], k.shape[1], q.device)[None].expand(q.shape[0], -1, -1)
    bias = None
    if mask is not None:
        bias = wide(mask)
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(mask, dtype=wide(q).dtype).masked_fill(~mask, -torch.inf)
    out = attend(q, k, v, scale, far, hides(far, causal, 0), softcap, bias=bias)
    if mask is not None and mask.dtype == torch.bool:  # a query that the mask leaves no key
        none = ~mask.any(-1).expand(q.shape[0], q.shape[2], q.shape[1]).transpose(1, 2)
        out = out.masked_fill(none[..., None], 0.0)
    return out
