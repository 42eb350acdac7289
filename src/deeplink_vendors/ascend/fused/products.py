# SPDX-License-Identifier: Apache-2.0
"""Matrix products, quantised products and mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink_vendors.ascend.fused.sdk import FLOATS, HALF, rows, same, torch_npu
from diopi.resolve import limited
from dlinfer.fused.products import summed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: str = "") -> Tensor:
    """torch's own product."""
    product = F.linear(x, weight, bias).contiguous()
    return summed(product, group) if group else product


@limited(lambda x: x.dtype in HALF and x.dim() >= 2 and x.numel() > 0)
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """npu_dynamic_quant, whose scale has no last dimension."""
    numbers, scale = torch_npu.npu_dynamic_quant(x)
    return numbers, scale.unsqueeze(-1)


def _exact(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> bool:
    scales = a_scale.dtype == b_scale.dtype == torch.float32
    return scales and out_dtype in HALF and a.numel() > 0 and a.dtype == b.dtype == torch.int8


@limited(_exact)
def linear_w8a8(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """npu_quant_matmul: the weight is [in, out], the scales have one dimension."""
    made: Tensor = torch_npu.npu_quant_matmul(
        rows(a),
        b.t(),
        b_scale.reshape(-1),
        pertoken_scale=a_scale.reshape(-1),
        bias=bias,
        output_dtype=out_dtype,
    )
    return made.reshape(*a.shape[:-1], -1)


def _restores(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None) -> bool:
    return weight.dtype == torch.int8 and same(HALF, x, scale, offset) and x.numel() > 0


@limited(_restores)
def weight_quant_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 0,
) -> Tensor:
    """npu_weight_quant_batchmatmul: weight [in, out], scale and offset [groups, out]."""
    made: Tensor = torch_npu.npu_weight_quant_batchmatmul(
        rows(x),
        weight.t(),
        scale.t().contiguous(),
        antiquant_offset=None if offset is None else offset.t().contiguous(),
        antiquant_group_size=group_size,
    )
    made = made if bias is None else made + bias
    return made.reshape(*x.shape[:-1], -1)


def _gates(logits: Tensor, scoring: str, groups: int, bias: Tensor | None) -> bool:
    plain = scoring == "softmax" and groups == 1 and bias is None
    return plain and logits.dtype in FLOATS and logits.numel() > 0


@limited(_gates)
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
    """npu_moe_gating_top_k_softmax, of float32: its weights have the type of its input."""
    weights, experts, _ = torch_npu.npu_moe_gating_top_k_softmax(logits.float(), None, k=top_k)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, experts.long()


def _mixes(x: Tensor, gate_up: Tensor, down: Tensor, activation: str) -> bool:
    return same(HALF, x, gate_up, down) and activation == "silu" and x.shape[0] > 0


@limited(_mixes)
def fused_moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Sort rows by expert, run two grouped products, and sum by the weights.

    npu_moe_init_routing requires the row of each choice, ordered by choice.
    """
    tokens, chosen = experts.shape
    each = torch.arange(tokens * chosen, dtype=torch.int32, device=x.device)
    row = each.view(chosen, tokens).t().contiguous()
    choice = experts.int()
    sorted_x, place, of_row = torch_npu.npu_moe_init_routing(x.contiguous(), row, choice, tokens)
    ends = torch_npu.npu_moe_compute_expert_tokens(of_row, down.shape[0]).long()
    how = {"group_list": ends, "split_item": 2, "group_type": 0, "group_list_type": 0}
    both = torch_npu.npu_grouped_matmul([sorted_x], [gate_up.transpose(1, 2)], **how)[0]
    gated = torch_npu.npu_swiglu(both, dim=-1)
    made = torch_npu.npu_grouped_matmul([gated], [down.transpose(1, 2)], **how)[0]
    out: Tensor = torch_npu.npu_moe_finalize_routing(
        made, None, None, None, weights.to(x.dtype), place, choice
    )
    return out
