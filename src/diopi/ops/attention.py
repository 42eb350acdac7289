# SPDX-License-Identifier: Apache-2.0
"""Fused attention of large models: flash attention, rotary embeddings, masked softmax."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diopi.gradient import gradients
from diopi.op import FLOATS, op

FAMILY = "attention"
Generator = torch.Generator


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, conj: bool, interleaved: bool) -> Tensor:
    """Rotate pairs of the last dimension by an angle; pairs are adjacent when `interleaved`."""
    sin = -sin if conj else sin
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    out = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return out.to(x.dtype)


def rotary_embedding_v2(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, dim: int) -> None:
    """Rotate query and key in place, pairing the halves; cos and sin have full size."""
    for tensor in (query, key):
        heads = tensor.view(*tensor.shape[:-1], -1, dim) if tensor.shape[-1] != dim else tensor
        first, second = heads.chunk(2, -1)
        shape = [*cos.shape[:-1]] + [1] * (heads.dim() - cos.dim()) + [dim]
        turned = heads * cos.view(shape) + torch.cat((-second, first), -1) * sin.view(shape)
        tensor.copy_(turned.view_as(tensor))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    is_causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    p_dropout: float = 0.0,
    gen: Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention over (batch, sequence, heads, size): out, log-sum-exp, max, sum, dropout mask.

    The last query sees the last key when the lengths differ; fewer key heads are shared.
    """
    repeats = q.shape[2] // k.shape[2]
    keys, values = (t.repeat_interleave(repeats, 2).transpose(1, 2) for t in (k, v))
    scores = q.transpose(1, 2) @ keys.transpose(-1, -2) * scale
    rows, columns = scores.shape[-2:]
    distance = torch.arange(columns, device=q.device) - (
        torch.arange(rows, device=q.device)[:, None] + columns - rows
    )
    if alibi_slopes is not None:
        slopes = alibi_slopes.view(-1, alibi_slopes.shape[-1], 1, 1).to(scores.dtype)
        scores = scores - slopes * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    left, right = window[0], 0 if is_causal else window[1]
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    if mask is not None:
        hidden = hidden | mask.to(torch.bool)
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    largest = scores.amax(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)  # a row without any key
    kept = torch.ones_like(weights)
    if p_dropout > 0:
        kept = torch.empty_like(weights).bernoulli_(1 - p_dropout, generator=gen)
        weights = weights * kept / (1 - p_dropout)
    out = (weights @ values).transpose(1, 2)
    return out, lse, largest, (lse - largest).exp(), kept.to(torch.bool)


def flash_attention(
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, Tensor]:
    """Attention over (batch, sequence, heads, size); also returns the log-sum-exp of every row."""
    return attend(
        q,
        k,
        v,
        scale=softmax_scale,
        is_causal=is_causal,
        alibi_slopes=alibi_slopes,
        window=(window_size_left, window_size_right),
        p_dropout=p_dropout,
        gen=gen,
    )[:2]


def flash_attention_backward(
    grad_output: Tensor,
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    attention_out: Tensor,
    softmax_lse: Tensor,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v; `gen` must be in the state of the forward."""
    del attention_out, softmax_lse  # a kernel may use them
    rest: Any = (
        alibi_slopes,
        p_dropout,
        softmax_scale,
        is_causal,
        window_size_left,
        window_size_right,
    )
    return gradients(
        lambda a, b, c: flash_attention(gen, a, b, c, *rest)[0], (q, k, v), grad_output
    )


def _sequences(bounds: Tensor | list[int]) -> list[tuple[int, int]]:
    ends = bounds.tolist() if isinstance(bounds, Tensor) else list(bounds)
    ends = ends if ends and ends[0] == 0 else [0, *ends]  # some dialects omit the zero
    return list(itertools.pairwise(ends))


def each_sequence(
    q: Tensor, k: Tensor, v: Tensor, cum_q: Any, cum_k: Any, **how: Any
) -> list[tuple[Tensor, ...]]:
    pairs = zip(_sequences(cum_q), _sequences(cum_k), strict=True)
    found = []
    for (a, b), (c, d) in pairs:
        parts = attend(q[None, a:b], k[None, c:d], v[None, c:d], **how)
        found.append(tuple(part[0] for part in parts))
    return found


def flash_attention_var_len(
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor,
    cum_seq_kv: Tensor,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, Tensor]:
    """flash_attention over packed sequences (tokens, heads, size), bounds in cum_seq_*."""
    del max_seqlen_q, max_seqlen_kv  # a kernel sizes its grid by them
    parts = each_sequence(
        q,
        k,
        v,
        cum_seq_q,
        cum_seq_kv,
        scale=softmax_scale,
        is_causal=is_causal,
        window=(window_size_left, window_size_right),
        alibi_slopes=alibi_slopes,
        p_dropout=p_dropout,
        gen=gen,
    )
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts], -1)


def flash_attention_var_len_backward(
    grad_output: Tensor,
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor,
    cum_seq_kv: Tensor,
    alibi_slopes: Tensor | None,
    attention_out: Tensor,
    softmax_lse: Tensor,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v."""
    del attention_out, softmax_lse
    rest: Any = (
        cum_seq_q,
        cum_seq_kv,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_kv,
        p_dropout,
        softmax_scale,
        is_causal,
        window_size_left,
        window_size_right,
    )
    return gradients(
        lambda a, b, c: flash_attention_var_len(gen, a, b, c, *rest)[0], (q, k, v), grad_output
    )


def scaled_masked_softmax(
    input: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """Return softmax(input * scale) over the last dimension; masked scores become -10000."""
    hidden = (
        torch.ones(input.shape[-2:], dtype=torch.bool, device=input.device).triu(1)
        if fixed_triu_mask
        else mask.to(torch.bool)
    )
    return (input * scale).masked_fill(hidden, -10000.0).softmax(-1)


def scaled_masked_softmax_backward(
    grad_output: Tensor, output: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """Return the gradient of scaled_masked_softmax, computed from its result."""
    del mask, fixed_triu_mask  # masked elements have weight 0 in the output
    weighted = grad_output * output
    return (weighted - output * weighted.sum(-1, keepdim=True)) * scale


# fmt: off
GRADS = "grad_q grad_k grad_v"
OUT = "attention_out softmax_lse"
BACKWARDS: dict[Callable[..., Any], Callable[..., Any]] = {
    flash_attention: flash_attention_backward,
    flash_attention_var_len: flash_attention_var_len_backward,
}
for forward, backward in BACKWARDS.items():
    op(forward.__name__, FAMILY, kind="composite", dtypes=FLOATS, meaning=forward, results=OUT,
       opinfo="", backward=backward.__name__)
    op(backward.__name__, FAMILY, kind="composite", dtypes=FLOATS, meaning=backward,
       results=GRADS, opinfo="")
op("scaled_masked_softmax", FAMILY, kind="composite", dtypes=FLOATS,
   meaning=scaled_masked_softmax, backward="scaled_masked_softmax_backward", opinfo="")
op("scaled_masked_softmax_backward", FAMILY, kind="composite", dtypes=FLOATS,
   meaning=scaled_masked_softmax_backward, results="grad_input", opinfo="")
op("rotary_embedding", FAMILY, kind="composite", dtypes=FLOATS, meaning=rotary_embedding,
   opinfo="")
op("rotary_embedding_v2", FAMILY, kind="composite", dtypes=FLOATS, meaning=rotary_embedding_v2,
   written="query key", opinfo="")
