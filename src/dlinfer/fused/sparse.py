# SPDX-License-Identifier: Apache-2.0
"""Sparse attention: an indexer chooses keys for each query, which attends to these alone.

Queries are packed: cu_q [sequences + 1] are the limits of the sequences, and the last query of a
sequence sees its last key. Caches are in blocks and have one head, which all queries share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.op import op, wide

TOGETHER = 64  # queries whose keys are gathered at once


def _rows(cu_q: Tensor, kv_lens: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sequence of each token and its position; -1 for tokens of no sequence."""
    bounds = cu_q.long()
    row = torch.searchsorted(bounds[1:], tokens, right=True)
    inside = row < kv_lens.shape[0]
    row = torch.where(inside, row, 0)
    place = kv_lens.long()[row] - (bounds[row + 1] - tokens)
    return row, torch.where(inside, place, -1)


def _places(cache: Tensor, block_table: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Gather [tokens, places, size] of a cache; invisible places are given as 0."""
    size = cache.shape[1]
    block = block_table[row[:, None], place // size].long()
    return cache[block, place % size, 0]


def _chosen(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    max_kv: int,
    top_k: int,
) -> Tensor:
    return q.new_empty((q.shape[0], top_k), dtype=torch.int32)


@op(
    "Tensor q, Tensor k_cache, Tensor weights, Tensor block_table, Tensor cu_q, Tensor kv_lens, "
    "SymInt max_kv, SymInt top_k",
    fake=_chosen,
)
def lightning_indexer(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    max_kv: int,
    top_k: int,
) -> Tensor:
    """Choose the top_k best keys of each query: int32 positions [tokens, top_k], ascending, then
    -1 where fewer keys are visible.

    The score of a key is the sum over heads of weights [tokens, heads] * relu(q . k), with q
    [tokens, heads, size]; of equal scores the first position is better. A query sees the keys up to
    its own. max_kv is the largest of kv_lens, or more.
    """
    longest = min(max_kv, block_table.shape[1] * k_cache.shape[1])
    places = torch.arange(longest, device=q.device)
    found = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    for begin in range(0, q.shape[0], TOGETHER):
        part = slice(begin, begin + TOGETHER)
        tokens = torch.arange(q.shape[0], device=q.device)[part]
        row, own = _rows(cu_q, kv_lens, tokens)
        visible = places <= own[:, None]
        keys = _places(k_cache, block_table, row, torch.where(visible, places, 0))
        keys = wide(torch.where(visible[..., None], keys, torch.zeros_like(keys)))
        products = torch.einsum("thd,tsd->ths", wide(q[part]), keys).relu()
        scores = torch.einsum("ths,th->ts", products, wide(weights[part]))
        scores = scores.masked_fill(~visible, -torch.inf)
        best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :top_k]
        best = torch.where(visible.gather(-1, best), best, longest).sort(-1).values
        found[part, : best.shape[1]] = torch.where(best < longest, best, -1).int()
    return found


def _as_values(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object, **__: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v_cache.shape[-1]))


@op(
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor indices, Tensor block_table, Tensor cu_q, "
    "Tensor kv_lens, float scale, Tensor? q_rope=None, Tensor? rope_cache=None",
    fake=_as_values,
)
def sparse_flash_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indices: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    kv_lens: Tensor,
    scale: float,
    q_rope: Tensor | None = None,
    rope_cache: Tensor | None = None,
) -> Tensor:
    """Attention of each query, q [tokens, heads, size], over the keys at its indices [tokens,
    chosen]: distinct positions in its sequence.

    A negative index, and one after the query's own position, is skipped; a query without keys gives
    zeros. With q_rope [tokens, heads, turned], its product with rope_cache is added to that of q
    with k_cache before the scale: the two parts of a latent cache, whose first part is also the
    values.
    """
    out = q.new_zeros((*q.shape[:-1], v_cache.shape[-1]))
    for begin in range(0, q.shape[0] if indices.shape[1] else 0, TOGETHER):
        part = slice(begin, begin + TOGETHER)
        tokens = torch.arange(q.shape[0], device=q.device)[part]
        row, own = _rows(cu_q, kv_lens, tokens)
        place = indices[part].long()
        visible = (place >= 0) & (place <= own[:, None])
        place = torch.where(visible, place, 0)

        def gathered(cache: Tensor, row: Tensor = row, place: Tensor = place) -> Tensor:
            found = wide(_places(cache, block_table, row, place))
            return torch.where(visible[..., None], found, 0.0)  # noqa: B023

        scores = torch.einsum("thd,tsd->ths", wide(q[part]), gathered(k_cache))
        if q_rope is not None and rope_cache is not None:
            turned = gathered(rope_cache)
            scores = scores + torch.einsum("thd,tsd->ths", wide(q_rope[part]), turned)
        nothing = ~visible.any(-1)[:, None, None]
        scores = (scores * scale).masked_fill(~visible[:, None], -torch.inf)
        shares = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
        out[part] = torch.einsum("ths,tsd->thd", shares, gathered(v_cache)).to(q.dtype)
    return out
