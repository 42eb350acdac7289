# SPDX-License-Identifier: Apache-2.0
"""Samples of the ops that serve large models: caches, penalties, attention of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes, positive

BATCHES = ((2, 4), (1,), (5, 1, 9))  # number of tokens of each row


@makes("apply_penalty", fixed=True)
def _apply_penalty(dtype: torch.dtype) -> Iterator[Sample]:
    for seen, tokens in zip(BATCHES, (9, 33, 1031), strict=True):
        rows = len(seen)
        ids = torch.cat([torch.randperm(tokens)[:count] for count in seen])
        yield called(
            logits=draw(dtype, rows, tokens),
            presence_penalty=positive(dtype, rows),
            frequency_penalty=positive(dtype, rows),
            p_token_ids=ids.int(),
            p_token_counts=torch.randint(1, 5, (sum(seen),), dtype=torch.int32),
            p_cumsum_seq_len=torch.tensor([0, *accumulate(seen)], dtype=torch.int32),
            p_max_len_in_batch=max(seen),
        )


@makes("apply_penalty_v2", fixed=True)
def _apply_penalty_v2(dtype: torch.dtype) -> Iterator[Sample]:
    for rows, tokens, seen in ((2, 9, 5), (1, 33, 1), (3, 1031, 77)):
        yield called(
            logits=draw(dtype, rows, tokens),
            presence_penalty=positive(dtype, seen),
            frequency_penalty=positive(dtype, seen),
            repetition_penalty=positive(dtype, seen),
            p_token_ids=torch.randperm(rows * tokens)[:seen],
            p_token_counts=torch.randint(1, 5, (seen,)),
        )


@makes("dest_index_copy_kv", fixed=True)
def _dest_index_copy_kv(dtype: torch.dtype) -> Iterator[Sample]:
    for places, new, heads, size in ((9, 3, 2, 8), (65, 33, 1, 16), (7, 0, 2, 4)):
        yield called(
            out=draw(dtype, places, heads, size),
            k=draw(dtype, new, heads, size),
            dest_loc=torch.randperm(places)[:new],
        )


def _cached(seen: tuple[int, ...]) -> dict[str, Any]:
    """Create the block table of the cached tokens of each row; rows are right-aligned."""
    longest = max(seen)
    places = torch.randperm(sum(seen) + 3)
    b_loc, starts = torch.zeros(len(seen), longest, dtype=torch.int64), [0, *accumulate(seen)]
    for row, count in enumerate(seen):
        b_loc[row, longest - count :] = places[starts[row] : starts[row] + count]
    return {
        "b_loc": b_loc,
        "b_start_loc": torch.tensor(starts[:-1]),
        "b_seq_len": torch.tensor(seen),
        "max_input_len": longest,
    }


@makes("token_attention_inference", fixed=True)
def _token_attention(dtype: torch.dtype) -> Iterator[Sample]:
    for seen in BATCHES:
        q, k = draw(dtype, len(seen), 4, 8), draw(dtype, sum(seen) + 3, 4, 8)
        yield called(q=q, k=k, **_cached(seen))


@makes("token_softmax_reduce_v_inference", fixed=True)
def _token_softmax_reduce_v(dtype: torch.dtype) -> Iterator[Sample]:
    for seen in BATCHES:
        logics, v = draw(dtype, 4, sum(seen)), draw(dtype, sum(seen) + 3, 4, 8)
        yield called(logics=logics, v=v, **_cached(seen), other_kv_index=0)


@makes("context_attention_inference", fixed=True)
def _context_attention(dtype: torch.dtype) -> Iterator[Sample]:
    for seen, heads, size in zip(BATCHES, (4, 2, 1), (8, 16, 32), strict=True):
        where = {key: value for key, value in _cached(seen).items() if key != "b_loc"}
        q, k, v = (draw(dtype, sum(seen), heads, size) for _ in range(3))
        yield called(q=q, k=k, v=v, **where)


@makes("paged_attention", fixed=True)
def _paged_attention(dtype: torch.dtype) -> Iterator[Sample]:
    for seen, block in ((BATCHES[0], 4), (BATCHES[2], 2), ((17, 33), 16)):
        blocks = max(-(-count // block) for count in seen)
        table = torch.randperm(len(seen) * blocks).view(len(seen), blocks)
        for heads, key_heads, hidden in ((4, 2, False), (2, 2, True)):
            mask = torch.rand(len(seen), max(seen)) < 0.3
            mask[:, 0] = False  # a row without any key has no softmax
            yield called(
                q=draw(dtype, len(seen), heads * 8),
                k=draw(dtype, len(seen) * blocks, block, key_heads * 8),
                v=draw(dtype, len(seen) * blocks, block, key_heads * 8),
                atten_mask=mask if hidden else None,
                actual_seq_lengths=list(seen),
                num_heads=heads,
                num_kv_heads=key_heads,
                dim=8,
                block_table=table.int(),
                block_size=block,
            )


@makes("prompt_flash_attention", fixed=True)
def _prompt_flash_attention(dtype: torch.dtype) -> Iterator[Sample]:
    for seen, heads, key_heads in ((BATCHES[0], 4, 2), (BATCHES[2], 2, 2), ((17, 33), 2, 1)):
        longest = max(seen)
        for mask in (None, torch.ones(longest, longest, dtype=torch.bool).triu(2)):
            yield called(
                query=draw(dtype, sum(seen), heads * 8),
                key=draw(dtype, sum(seen), key_heads * 8),
                value=draw(dtype, sum(seen), key_heads * 8),
                atten_mask=mask,
                actual_seq_lengths=list(seen),
                max_input_len=longest,
                num_heads=heads,
                num_kv_heads=key_heads,
                dim=8,
            )


@makes("matmul_all_reduce")
def _matmul_all_reduce(dtype: torch.dtype) -> Iterator[Sample]:
    for rows, inner, columns, biased in ((3, 4, 5, True), (17, 515, 33, False), (1, 64, 129, True)):
        yield called(
            x1=draw(dtype, rows, inner),
            x2=draw(dtype, inner, columns),
            bias=draw(dtype, columns) if biased else None,
            group="",
            reduce_op="sum",
            comm_turn=0,
            stream_mode=1,
        )
