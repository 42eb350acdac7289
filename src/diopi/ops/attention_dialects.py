# SPDX-License-Identifier: Apache-2.0
"""Flash attention in the forms of vendors and older headers: other layouts, other saved results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diopi.gradient import gradients
from diopi.op import FLOATS, op
from diopi.ops.attention import (
    attend,
    each_sequence,
    flash_attention_backward,
    flash_attention_var_len,
    flash_attention_var_len_backward,
)

FAMILY = "attention_dialects"
Generator = torch.Generator

# Positions of batch, sequence and heads; H is heads times head size.
LAYOUTS = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "SBND": (1, 0, 2, 3)}


def _to_bsnd(tensor: Tensor, layout: str, heads: int) -> Tensor:
    if layout.endswith("H"):  # BSH, SBH
        tensor = tensor.unflatten(-1, (heads, -1))
        layout = layout[:2] + "ND"
    return tensor.permute([LAYOUTS[layout].index(i) for i in range(4)])


def _from_bsnd(tensor: Tensor, layout: str) -> Tensor:
    moved = tensor.permute(LAYOUTS[layout[:2] + "ND" if layout.endswith("H") else layout])
    return moved.flatten(-2) if layout.endswith("H") else moved.contiguous()


def customized_flash_attention(
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    attention_mask: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    head_num: int,
    input_layout: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention in a named layout; a true element of the mask hides a key.

    Also returns the dropout mask, each row's largest score, its sum of exponentials, and an empty
    tensor where some vendors keep the softmax itself.
    """
    heads = head_num or q.shape[2]
    size = _to_bsnd(q, input_layout, heads).shape[-1]
    kv_heads = k.shape[-1] // size if input_layout.endswith("H") else heads
    out, _, largest, total, kept = attend(
        _to_bsnd(q, input_layout, heads),
        _to_bsnd(k, input_layout, kv_heads),
        _to_bsnd(v, input_layout, kv_heads),
        scale=softmax_scale,
        is_causal=is_causal,
        window=(window_size_left, window_size_right),
        alibi_slopes=alibi_slopes,
        mask=attention_mask,
        p_dropout=p_dropout,
        gen=gen,
    )
    return _from_bsnd(out, input_layout), kept, largest, total, q.new_empty(0)


def customized_flash_attention_backward(
    grad_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    attention_out: Tensor,
    attention_mask: Tensor | None,
    dropout_mask: Tensor | None,
    softmax_max: Tensor | None,
    softmax_sum: Tensor | None,
    softmax_out: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    head_num: int,
    input_layout: str,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v; the reference supports p_dropout 0 only."""
    del attention_out, dropout_mask, softmax_max, softmax_sum, softmax_out
    if p_dropout:
        raise NotImplementedError("the reference of this gradient supports p_dropout 0 only")
    rest: Any = (
        alibi_slopes,
        attention_mask,
        0.0,
        softmax_scale,
        is_causal,
        window_size_left,
        window_size_right,
        head_num,
        input_layout,
    )
    return gradients(
        lambda a, b, c: customized_flash_attention(None, a, b, c, *rest)[0], (q, k, v), grad_output
    )


def customized_flash_attention_var_len(
    gen: Generator | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: list[int],
    cum_seq_kv: list[int],
    alibi_slopes: Tensor | None,
    attention_mask: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """customized_flash_attention over packed sequences (tokens, heads, size)."""
    del max_seqlen_q, max_seqlen_kv
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
        mask=attention_mask,
        p_dropout=p_dropout,
        gen=gen,
    )
    out, _, largest, total, kept = zip(*parts, strict=True)
    flat = torch.cat([k.flatten() for k in kept])
    return torch.cat(out), flat, torch.cat(largest, -1), torch.cat(total, -1), q.new_empty(0)


def customized_flash_attention_var_len_backward(
    grad_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: list[int],
    cum_seq_kv: list[int],
    alibi_slopes: Tensor | None,
    attention_out: Tensor,
    attention_mask: Tensor | None,
    dropout_mask: Tensor | None,
    softmax_max: Tensor | None,
    softmax_sum: Tensor | None,
    softmax_out: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v; the reference supports p_dropout 0 only."""
    del attention_out, dropout_mask, softmax_max, softmax_sum, softmax_out
    if p_dropout:
        raise NotImplementedError("the reference of this gradient supports p_dropout 0 only")
    rest: Any = (
        cum_seq_q,
        cum_seq_kv,
        alibi_slopes,
        attention_mask,
        max_seqlen_q,
        max_seqlen_kv,
        0.0,
        softmax_scale,
        is_causal,
        window_size_left,
        window_size_right,
    )
    return gradients(
        lambda a, b, c: customized_flash_attention_var_len(None, a, b, c, *rest)[0],
        (q, k, v),
        grad_output,
    )


def multi_head_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float,
    gen: Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Deprecated form of flash_attention; the third result is the dropout mask, on request."""
    out, lse, _, _, kept = attend(
        q, k, v, scale=scale, is_causal=is_causal, p_dropout=dropout_p, gen=gen
    )
    return out, lse, kept.to(q.dtype) if return_debug_mask else q.new_empty(0)


def multi_head_attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    gen: Generator | None,
    scale: float,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v."""
    return flash_attention_backward(
        grad_out, gen, q, k, v, None, out, softmax_lse, dropout_p, scale, is_causal, -1, -1
    )


def multi_head_attention_var_len(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float,
    gen: Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Deprecated form of flash_attention_var_len."""
    del return_debug_mask  # it has no unique shape
    out, lse = flash_attention_var_len(
        gen, q, k, v, cum_seq_q, cum_seq_k, None, max_q, max_k, dropout_p, scale, is_causal, -1, -1
    )
    return out, lse, q.new_empty(0)


def multi_head_attention_var_len_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    gen: Generator | None,
    scale: float,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for q, k and v."""
    return flash_attention_var_len_backward(
        grad_out,
        gen,
        q,
        k,
        v,
        cum_seq_q,
        cum_seq_k,
        None,
        out,
        softmax_lse,
        max_q,
        max_k,
        dropout_p,
        scale,
        is_causal,
        -1,
        -1,
    )


# fmt: off
GRADS = "grad_q grad_k grad_v"
CUSTOM = "attention_out dropout_mask softmax_max softmax_sum softmax_out"
DEPRECATED = "out softmax_lse debug_attn_mask"
ROWS: tuple[tuple[Callable[..., Any], Callable[..., Any], str], ...] = (
    (customized_flash_attention, customized_flash_attention_backward, CUSTOM),
    (customized_flash_attention_var_len, customized_flash_attention_var_len_backward, CUSTOM),
    (multi_head_attention, multi_head_attention_backward, DEPRECATED),
    (multi_head_attention_var_len, multi_head_attention_var_len_backward, DEPRECATED),
)
for forward, backward, results in ROWS:
    op(forward.__name__, FAMILY, kind="composite", dtypes=FLOATS, meaning=forward,
       results=results, opinfo="", backward=backward.__name__)
    op(backward.__name__, FAMILY, kind="composite", dtypes=FLOATS, meaning=backward,
       results=GRADS, opinfo="")
