# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule and its causal convolution: layers whose memory has a fixed size.

A state has a slot for each sequence, and `slots` names that of each row. A row with a negative slot
starts with a state of zeros, and its new state is not kept; so does a row of `prefill` that `fresh`
marks, whose new state is kept. `prefill` reads packed sequences with the limits cu_q
[rows + 1], `decode` one token for each row. Values are computed in float32 or wider.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlinfer.op import op, wide

CHUNK = 64  # tokens whose updates of the state are computed together


def _stored(state: Tensor, slots: Tensor, fresh: Tensor | None) -> Tensor:
    """Return the states of rows."""
    started = slots < 0 if fresh is None else (slots < 0) | fresh
    found = wide(state[slots.clamp_min(0).long()])
    return torch.where(started.view(-1, *[1] * (found.dim() - 1)), 0.0, found)


def _store(state: Tensor, slots: Tensor, new: Tensor) -> None:
    kept = slots >= 0
    state[slots[kept].long()] = new[kept].to(state.dtype)


def _convolved(
    context: Tensor, weight: Tensor, bias: Tensor | None, activation: str, tokens: int
) -> Tensor:
    """Convolve the last tokens of [..., channels, length] with weight [channels, width]."""
    windows = context.unfold(-1, weight.shape[1], 1)[..., -tokens:, :]
    out = (windows * wide(weight)[:, None]).sum(-1)
    out = out if bias is None else out + wide(bias)[:, None]
    return F.silu(out) if activation == "silu" else out


def _as_x(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty(x.shape)


@op(
    "Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor slots, Tensor cu_q, "
    'Tensor? fresh=None, str activation="silu"',
    fake=_as_x,
)
def causal_conv1d_prefill(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    slots: Tensor,
    cu_q: Tensor,
    fresh: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """Convolve each channel of packed sequences x [tokens, channels] with weight [channels, width].

    state [slots, channels, length], length at least width - 1, holds the last inputs of a sequence,
    the newest last; it is updated. activation: silu, or "" for none.
    """
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    before = _stored(state, slots, fresh)
    after = before.clone()
    for row, (begin, end) in enumerate(itertools.pairwise(cu_q.tolist())):
        if end > begin:
            context = torch.cat((before[row], wide(x[begin:end]).t()), -1)
            done = _convolved(context, weight, bias, activation, end - begin)
            out[begin:end] = done.t().to(x.dtype)
            after[row] = context[:, -state.shape[2] :]
    _store(state, slots, after)
    return out


@op(
    'Tensor x, Tensor weight, Tensor? bias, Tensor(a!) state, Tensor slots, str activation="silu"',
    fake=_as_x,
)
def causal_conv1d_decode(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    slots: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Convolve one token of each row, x [rows, channels]; see `causal_conv1d_prefill`."""
    context = torch.cat((_stored(state, slots, None), wide(x)[..., None]), -1)
    _store(state, slots, context[..., 1:])
    return _convolved(context, weight, bias, activation, 1)[..., 0].to(x.dtype).contiguous()


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _inputs(
    q: Tensor, k: Tensor, v: Tensor, scale: float, normalise: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in float32 or wider, with a head of q and k for each head of v."""
    queries, keys = wide(q), wide(k)
    if normalise:
        queries, keys = _normalised(queries), _normalised(keys)
    each = v.shape[-2] // q.shape[-2]
    queries, keys = (t.repeat_interleave(each, -2) for t in (queries * scale, keys))
    return queries, keys, wide(v)


RULE = (
    "Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor(a!) state, Tensor slots, "
    "{}float scale, {}bool normalise=True"
)


def _as_v(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    return v.new_empty(v.shape)


@op(RULE.format("", ""), fake=_as_v)
def gated_delta_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    scale: float,
    normalise: bool = True,
) -> Tensor:
    """Apply the gated delta rule to one token of each row: q and k [rows, heads, size], v [rows,
    value heads, value size]; value heads are a multiple of heads.

    state [slots, value heads, size, value size] becomes
    S' = exp(decay) S + k (beta (v - exp(decay) S.T k)).T, and the result is S'.T q * scale; decay
    (not above 0) and beta are [rows, value heads]. With `normalise` q and k have length 1.
    """
    queries, keys, values = _inputs(q, k, v, scale, normalise)
    now = _stored(state, slots, None) * wide(decay).exp()[..., None, None]
    error = values - torch.einsum("rhkv,rhk->rhv", now, keys)
    now = now + keys[..., None] * (error * wide(beta)[..., None])[..., None, :]
    _store(state, slots, now)
    return torch.einsum("rhkv,rhk->rhv", now, queries).to(v.dtype).contiguous()


@op(RULE.format("Tensor cu_q, ", "Tensor? fresh=None, "), fake=_as_v)
def gated_delta_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    cu_q: Tensor,
    scale: float,
    fresh: Tensor | None = None,
    normalise: bool = True,
) -> Tensor:
    """Apply the gated delta rule to packed sequences, q and k [tokens, heads, size], token by
    token as `gated_delta_decode` does, by chunks of tokens.
    """
    queries, keys, values = _inputs(q, k, v, scale, normalise)
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    states = _stored(state, slots, fresh)
    for row, (begin, end) in enumerate(itertools.pairwise(cu_q.tolist())):
        now = states[row]
        for first in range(begin, end, CHUNK):
            part = slice(first, min(first + CHUNK, end))
            given = (queries[part], keys[part], values[part], wide(decay[part]), wide(beta[part]))
            q_part, k_part, v_part, decays, betas = (t.transpose(0, 1) for t in given)
            done, now = _chunk(q_part, k_part, v_part, decays, betas, now)
            out[part] = done.transpose(0, 1).to(v.dtype)
        states[row] = now
    _store(state, slots, states)
    return out


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the results of a chunk, [heads, tokens, value size], and the state after it.

    The errors that the tokens write, e_i = beta_i (v_i - exp(d_i) S.T k_i - sum of earlier
    (k_i . k_j) exp(d_i - d_j) e_j), solve a triangular system; d sums the decays up to a token.
    """
    total = decay.cumsum(-1)
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    reach = total.exp()[..., None]
    system = (k @ k.transpose(-1, -2) * between * beta[..., None]).tril(-1)
    known = beta[..., None] * (v - reach * (k @ state))
    errors = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    out = reach * (q @ state) + (q @ k.transpose(-1, -2) * between) @ errors
    left = (total[..., -1:] - total).exp()[..., None]
    return out, reach[..., -1:, :] * state + (k * left).transpose(-1, -2) @ errors
