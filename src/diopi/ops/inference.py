# SPDX-License-Identifier: Apache-2.0
"""Serving of large models: attention over a cache of keys and values, penalties, fused matmul."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diopi.op import FLOATS, Kind, op
from diopi.ops.attention import attend

FAMILY = "inference"


def apply_penalty(
    logits: Tensor,
    presence_penalty: Tensor,
    frequency_penalty: Tensor,
    p_token_ids: Tensor,
    p_token_counts: Tensor,
    p_cumsum_seq_len: Tensor,
    p_max_len_in_batch: int,
) -> None:
    """Subtract presence + frequency * count from the logits of tokens that a row contains."""
    del p_max_len_in_batch  # a kernel sizes its grid by it
    bounds = p_cumsum_seq_len.tolist()
    for row, (low, high) in enumerate(itertools.pairwise(bounds)):
        ids, counts = p_token_ids[low:high].long(), p_token_counts[low:high]
        logits[row, ids] -= frequency_penalty[row] * counts + presence_penalty[row]


def apply_penalty_v2(
    logits: Tensor,
    presence_penalty: Tensor,
    frequency_penalty: Tensor,
    repetition_penalty: Tensor,
    p_token_ids: Tensor,
    p_token_counts: Tensor,
) -> None:
    """Apply penalties like apply_penalty, with a repetition factor;
    ids index the flattened logits.
    """
    flat = logits.view(-1)
    ids = p_token_ids.long()
    seen = flat[ids]
    seen = torch.where(seen > 0, seen / repetition_penalty, seen * repetition_penalty)
    flat[ids] = (seen - p_token_counts * frequency_penalty - presence_penalty).to(flat.dtype)


def dest_index_copy_kv(out: Tensor, k: Tensor, dest_loc: Tensor) -> None:
    """Copy new keys or values to their positions in the cache: out[dest_loc] = k."""
    out[dest_loc.long()] = k


def _places(b_loc: Tensor, row: int, length: int, max_input_len: int) -> Tensor:
    """Return the positions of a row's tokens in the cache; rows of b_loc end at max_input_len."""
    return b_loc[row, max_input_len - length : max_input_len].long()


def token_attention_inference(
    q: Tensor, k: Tensor, b_loc: Tensor, b_start_loc: Tensor, b_seq_len: Tensor, max_input_len: int
) -> Tensor:
    """Return scores (heads, tokens) of each row's one query (row, heads,
    size) with its cached keys.
    """
    lengths = b_seq_len.tolist()
    out = q.new_zeros((q.shape[1], int(sum(lengths))))
    for row, (start, length) in enumerate(zip(b_start_loc.tolist(), lengths, strict=True)):
        keys = k[_places(b_loc, row, length, max_input_len)]
        out[:, start : start + length] = (q[row] * keys).sum(-1).t() / q.shape[-1] ** 0.5
    return out


def token_softmax_reduce_v_inference(
    logics: Tensor,
    v: Tensor,
    b_loc: Tensor,
    b_start_loc: Tensor,
    b_seq_len: Tensor,
    max_input_len: int,
    other_kv_index: int,
) -> Tensor:
    """Return the cached values weighted by the softmax of each row's scores:
    (rows, heads, size).
    """
    del other_kv_index  # a kernel reads there instead of out of bounds
    rows = []
    for row, (start, length) in enumerate(
        zip(b_start_loc.tolist(), b_seq_len.tolist(), strict=True)
    ):
        weights = logics[:, start : start + length].softmax(-1)
        values = v[_places(b_loc, row, length, max_input_len)]
        rows.append(torch.einsum("ht,thd->hd", weights, values))
    return torch.stack(rows)


def context_attention_inference(
    q: Tensor, k: Tensor, v: Tensor, b_start_loc: Tensor, b_seq_len: Tensor, max_input_len: int
) -> Tensor:
    """Causal attention inside each of the packed sequences (tokens, heads, size)."""
    del max_input_len
    out = torch.zeros_like(q)
    for start, length in zip(b_start_loc.tolist(), b_seq_len.tolist(), strict=True):
        part = slice(start, start + length)
        out[part] = attend(
            q[None, part], k[None, part], v[None, part], scale=q.shape[-1] ** -0.5, is_causal=True
        )[0][0]
    return out


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    atten_mask: Tensor | None,
    actual_seq_lengths: list[int],
    num_heads: int,
    num_kv_heads: int,
    dim: int,
    block_table: Tensor,
    block_size: int,
) -> Tensor:
    """Attention of one query per row to a cache in blocks;
    a true element of the mask hides a key.
    """
    queries = q.reshape(-1, 1, num_heads, dim)
    keys, values = (cache.reshape(-1, num_kv_heads, dim) for cache in (k, v))
    rows = []
    for row, length in enumerate(actual_seq_lengths):
        tokens = torch.arange(length, device=q.device)
        places = block_table[row, tokens // block_size].long() * block_size + tokens % block_size
        mask = None if atten_mask is None else atten_mask[row].reshape(-1)[:length]
        rows.append(
            attend(
                queries[row : row + 1],
                keys[places][None],
                values[places][None],
                scale=dim**-0.5,
                mask=mask,
            )[0]
        )
    return torch.cat(rows).reshape(q.shape)


def prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Tensor | None,
    actual_seq_lengths: list[int],
    max_input_len: int,
    num_heads: int,
    num_kv_heads: int,
    dim: int,
) -> Tensor:
    """Attention inside each packed prompt; causal without a mask; a mask hides keys."""
    del max_input_len
    queries = query.reshape(-1, num_heads, dim)
    keys, values = (t.reshape(-1, num_kv_heads, dim) for t in (key, value))
    out, start = torch.zeros_like(queries), 0
    for row, length in enumerate(actual_seq_lengths):
        part = slice(start, start + length)
        mask = None
        if atten_mask is not None:
            maps = atten_mask.reshape(-1, *atten_mask.shape[-2:])
            mask = maps[min(row, len(maps) - 1), :length, :length]
        out[part] = attend(
            queries[None, part],
            keys[None, part],
            values[None, part],
            scale=dim**-0.5,
            is_causal=mask is None,
            mask=mask,
        )[0][0]
        start += length
    return out.reshape(query.shape)


def matmul_all_reduce(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None,
    group: str,
    reduce_op: str,
    comm_turn: int,
    stream_mode: int,
) -> Tensor:
    """Return x1 @ x2 + bias, reduced over the group; the reference is a group of one."""
    del group, reduce_op, comm_turn, stream_mode
    product = x1 @ x2
    return product if bias is None else product + bias


# fmt: off
KINDS: dict[str, Kind] = {"dest_index_copy_kv": "exact", "matmul_all_reduce": "contraction"}
WRITTEN = {apply_penalty: "logits", apply_penalty_v2: "logits", dest_index_copy_kv: "out"}
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    apply_penalty, apply_penalty_v2, dest_index_copy_kv, token_attention_inference,
    token_softmax_reduce_v_inference, context_attention_inference, paged_attention,
    prompt_flash_attention, matmul_all_reduce,
)
for function in FUNCTIONS:
    op(function.__name__, FAMILY, kind=KINDS.get(function.__name__, "composite"), dtypes=FLOATS,
       meaning=function, written=WRITTEN.get(function, ""), opinfo="")
