# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: the selection of experts, and the sum of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlinfer.fused.products import dynamic_quant, linear_w8a8
from dlinfer.op import op, wide


@op(
    'Tensor logits, int top_k, bool renormalize=False, str scoring="softmax", int groups=1, '
    "int top_groups=1, Tensor? bias=None, float scale=1.0",
    "(Tensor, Tensor)",
)
def moe_gating(
    logits: Tensor,
    top_k: int,
    renormalize: bool = False,
    scoring: str = "softmax",
    groups: int = 1,
    top_groups: int = 1,
    bias: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return (weights in float32, experts in int64) [tokens, top_k], best first.

    logits [tokens, experts]; scoring: softmax or sigmoid. A bias [experts] counts for the choice,
    not in the weights. With groups, only experts of the best top_groups are chosen: by a group's
    best expert, with a bias by the sum of its best two. With `renormalize` the weights sum to 1,
    then times scale.
    """
    scores = wide(logits)
    scores = scores.softmax(-1) if scoring == "softmax" else scores.sigmoid()
    wanted = scores if bias is None else scores + bias
    if groups > 1:
        wanted = wanted.masked_fill(_outside(wanted, groups, top_groups, bias), -torch.inf)
    chosen = wanted.topk(top_k, -1).indices
    weights = scores.gather(-1, chosen)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return (weights * scale).float().contiguous(), chosen.contiguous()


def _outside(wanted: Tensor, groups: int, top_groups: int, bias: Tensor | None) -> Tensor:
    """Return which experts are in none of the best groups."""
    parts = wanted.unflatten(-1, (groups, -1))
    worth = parts.amax(-1) if bias is None else parts.topk(2, -1).values.sum(-1)
    best = worth.topk(top_groups, -1).indices
    outside = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
    return outside[..., None].expand_as(parts).flatten(-2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu}


def _as_x(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty(x.shape)


@op(
    'Tensor x, Tensor gate_up, Tensor down, Tensor weights, Tensor experts, str activation="silu"',
    fake=_as_x,
)
def fused_moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Return the weighted sum of the chosen experts' results for each token, x [tokens, size].

    gate_up [experts, 2 * inner, size], down [experts, size, inner]; weights and experts are
    [tokens, chosen], from moe_gating. activation: silu or gelu.
    """
    act = ACTIVATIONS[activation]

    def expert_of(rows: Tensor, expert: int) -> Tensor:
        gate, up = F.linear(rows, gate_up[expert]).chunk(2, -1)
        return F.linear(act(gate) * up, down[expert])

    return mixed(x, weights, experts, expert_of)


def mixed(
    x: Tensor, weights: Tensor, experts: Tensor, expert_of: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Return the weighted sum of the results of each token's experts, `expert_of(rows, expert)`."""
    out = torch.zeros(x.shape, dtype=wide(x).dtype, device=x.device)
    for expert in experts.unique().tolist():
        token, place = (experts == expert).nonzero(as_tuple=True)
        made = expert_of(x[token], expert)
        out.index_add_(0, token, made.to(out.dtype) * weights[token, place, None].to(out.dtype))
    return out.to(x.dtype)


@op(
    "Tensor x, Tensor gate_up, Tensor gate_up_scale, Tensor down, Tensor down_scale, "
    'Tensor weights, Tensor experts, str activation="silu"',
    fake=_as_x,
)
def fused_moe_w8a8(
    x: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Compute `fused_moe` with weights and operands of int8: each product is `linear_w8a8` of
    `dynamic_quant`, and its result is of x's type.

    gate_up_scale [experts, 2 * inner] and down_scale [experts, size], or with one more dimension
    of 1, are the scales of the weights.
    """
    return moe_w8a8(
        x, gate_up, gate_up_scale, down, down_scale, weights, experts, activation,
        dynamic_quant, linear_w8a8,
    )  # fmt: skip


def moe_w8a8(
    x: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    quantise: Callable[..., Any],
    product: Callable[..., Any],
) -> Tensor:
    """Compute `fused_moe_w8a8` by the given kernels of `dynamic_quant` and `linear_w8a8`."""
    act = ACTIVATIONS[activation]

    def by_int8(rows: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        numbers, row_scale = quantise(rows)
        found: Tensor = product(numbers, weight, row_scale, wide(scale).reshape(-1), x.dtype)
        return found

    def expert_of(rows: Tensor, expert: int) -> Tensor:
        gate, up = by_int8(rows, gate_up[expert], gate_up_scale[expert]).chunk(2, -1)
        return by_int8(act(gate) * up, down[expert], down_scale[expert])

    return mixed(x, weights, experts, expert_of)
