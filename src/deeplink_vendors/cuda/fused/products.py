# SPDX-License-Identifier: Apache-2.0
"""Matrix products: plain, quantised, and mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink_vendors.cuda.fused.kernels import products as kernels
from deeplink_vendors.cuda.fused.shapes import FLOATS, WHOLE, dense, power, rows, same
from diopi.resolve import limited
from dlinfer.fused.products import summed

FEW = 32  # rows up to which reading the weights determines the time of a product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: str = "") -> Tensor:
    """Call torch's own product; in float32 for a bias of odd size, for which torch rounds twice."""
    if bias is not None and weight.shape[0] % 8 and x.dtype in FLOATS[1:]:
        product = F.linear(x.float(), weight.float(), bias.float()).to(x.dtype)
    else:
        product = F.linear(x, weight, bias).contiguous()
    return summed(product, group) if group else product


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _restores(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None) -> bool:
    return (
        x.dtype in FLOATS
        and weight.dtype in (torch.int8, torch.uint8)
        and weight.dim() == scale.dim() == 2
        and weight.shape[0] == scale.shape[0]
        and weight.stride(1) == 1
        and scale.dtype in FLOATS
        and (offset is None or (offset.shape == scale.shape and offset.dtype in FLOATS))
    )


@limited(_restores)
def weight_quant_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 0,
) -> Tensor:
    """Dequantise the weights on the fly for few rows, before torch's own product for many."""
    given, count, apart = rows(x)
    inner, outer, groups = x.shape[-1], weight.shape[0], scale.shape[1]
    group, four = group_size or inner, weight.dtype == torch.uint8
    scale, more = scale.contiguous(), x if offset is None else offset.contiguous()
    if count > FEW:
        whole = torch.empty((outer, inner), dtype=x.dtype, device=x.device)
        kernels.restore[(outer, -(-inner // 1024))](
            weight, scale, more, whole, inner, outer, groups, group, weight.stride(0),
            four, offset is not None, 1024,
        )  # fmt: skip
        return F.linear(x, whole, bias).contiguous()
    y = torch.empty((*x.shape[:-1], outer), dtype=x.dtype, device=x.device)
    if not count:
        return y
    few, step = power(count, 16), 64 if x.dtype == torch.float32 else 128
    kernels.weight_quant[(-(-count // few), -(-outer // 32))](
        given, weight, scale, more, x if bias is None else bias.contiguous(), y,
        count, inner, outer, groups, group, apart, weight.stride(0),
        four, offset is not None, bias is not None, group % step == 0, _precision(x),
        few, 32, step,
    )  # fmt: skip
    return y


def _exact(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> bool:
    scales = a_scale.dtype == b_scale.dtype == torch.float32
    return scales and a.dtype == b.dtype == torch.int8 and b.dim() == 2 and out_dtype in FLOATS


@limited(_exact)
def linear_w8a8(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute tiles that are exact in int32 before they are scaled."""
    given, count, apart = rows(a)
    b = dense(b)
    inner, outer = a.shape[-1], b.shape[0]
    y = torch.empty((*a.shape[:-1], outer), dtype=out_dtype, device=a.device)
    if not count:
        return y
    few = min(128, power(count, 16))
    columns, step = (32, 256) if count <= 16 else (64, 64)
    kernels.w8a8[(-(-count // few), -(-outer // columns))](
        given, b, a_scale.expand(*a.shape[:-1], 1).contiguous(), b_scale.contiguous(),
        b if bias is None else bias.contiguous(), y, count, inner, outer, apart, b.stride(0),
        bias is not None, few, columns, step,
    )  # fmt: skip
    return y


def _gates(logits: Tensor, top_k: int, groups: int) -> bool:
    experts = logits.shape[-1]
    even = groups == 1 or (experts == power(experts) and groups == power(groups) < experts)
    return logits.dim() == 2 and logits.dtype in FLOATS and even and top_k <= 32 and experts <= 4096


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
    """Run a program for each token; the first of equal experts is chosen."""
    logits = dense(logits)
    tokens, count = logits.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    if tokens:
        kernels.gating[(tokens,)](
            logits, logits if bias is None else bias.contiguous(), weights, experts, count,
            logits.stride(0), scale, top_k, renormalize, scoring != "softmax", bias is not None,
            groups, top_groups, power(count), power(top_k), num_warps=1 if count <= 256 else 4,
        )  # fmt: skip
    return weights, experts


def _mixes(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor, activation: str
) -> bool:
    return (
        same(x, gate_up, down)
        and x.dim() == 2
        and gate_up.stride(2) == down.stride(2) == 1
        and weights.dtype == torch.float32
        and experts.dtype in WHOLE
        and activation in ("silu", "gelu")
    )


@limited(_mixes)
def fused_moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Sort tokens by expert, in tiles of one expert each, without synchronizing with the device."""
    tokens, size = x.shape
    chosen = experts.shape[1]
    count, inner = down.shape[0], down.shape[2]
    if not tokens:
        return torch.empty_like(x)
    x = dense(x)
    few = max(16, min(64, power(tokens * chosen // count)))
    order, tiles = _sorted(experts, count, few)
    columns, step = 64, 32 if x.dtype == torch.float32 else 64
    hidden = torch.empty((tokens * chosen, inner), dtype=x.dtype, device=x.device)
    kernels.gate_up[(tiles[0].shape[0], -(-inner // columns))](
        x, gate_up, hidden, order, *tiles, inner, size, chosen, x.stride(0),
        gate_up.stride(0), gate_up.stride(1), activation, _precision(x), few, columns, step,
    )  # fmt: skip
    made = torch.empty((tokens, chosen, size), dtype=torch.float32, device=x.device)
    kernels.down[(tiles[0].shape[0], -(-size // columns))](
        hidden, down, made, weights.contiguous(), order, *tiles, inner, size,
        down.stride(0), down.stride(1), _precision(x), few, columns, step,
    )  # fmt: skip
    return made.sum(1).to(x.dtype)


def _sorted(experts: Tensor, count: int, few: int) -> tuple[Tensor, list[Tensor]]:
    """Return the choices in the order of their experts, and tiles of `few` choices, by expert.

    A tile is an expert, and the range of its choices; there are as many tiles as there could be,
    and those at the end are empty.
    """
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    numbers = torch.arange(count, device=flat.device)
    ends = torch.searchsorted(flat[order], numbers, right=True)
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    tiles = (ends - begins + few - 1) // few
    last_tile = tiles.cumsum(0)
    most = min(flat.shape[0], (flat.shape[0] + count * (few - 1)) // few)
    tile = torch.arange(most, device=flat.device)
    owner = torch.searchsorted(last_tile, tile, right=True)
    expert = owner.clamp(max=count - 1)
    first = begins[expert] + (tile - (last_tile - tiles)[expert]) * few
    last = torch.where(owner < count, torch.minimum(ends[expert], first + few), first)
    return order, [expert, first, last]
