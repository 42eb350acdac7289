# SPDX-License-Identifier: Apache-2.0
"""Norms, activations, rotary embedding, and writes to the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from deeplink_vendors.cuda.fused.kernels import tokens as kernels
from deeplink_vendors.cuda.fused.shapes import (
    FLOATS,
    LONGEST,
    WHOLE,
    dense,
    power,
    rows,
    same,
    warps,
)
from diopi.resolve import limited


def _normal(x: Tensor, weight: Tensor) -> bool:
    return same(x, weight) and 0 < x.shape[-1] <= LONGEST and weight.shape == x.shape[-1:]


def _added(x: Tensor, residual: Tensor, weight: Tensor) -> bool:
    return _normal(x, weight) and same(x, residual) and x.shape == residual.shape


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, quantised: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (the norm, or its int8; the sum with the residual; the scales)."""
    shape = x.shape
    given, count, apart = rows(x)
    more, _, more_apart = rows(x if residual is None else residual)
    kind = torch.int8 if quantised else x.dtype
    y = torch.empty(shape, dtype=kind, device=x.device)
    total = y if residual is None else torch.empty(shape, dtype=x.dtype, device=x.device)
    scales = y
    if quantised:
        scales = torch.empty((*shape[:-1], 1), dtype=torch.float32, device=x.device)
    if count:
        block = power(shape[-1])
        kernels.norm[(count,)](
            given, more, weight.contiguous(), y, total, scales, shape[-1], apart, more_apart, eps,
            residual is not None, quantised, block, num_warps=warps(block),
        )  # fmt: skip
    return y, total, scales


@limited(_normal)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Run a program for each row."""
    return _norm(x, None, weight, eps, False)[0]


@limited(_added)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Run a program for each row."""
    return _norm(x, residual, weight, eps, False)[:2]


@limited(_normal)
def rms_norm_w8a8(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Run a program for each row."""
    numbers, _, scales = _norm(x, None, weight, eps, True)
    return numbers, scales


@limited(_added)
def add_rms_norm_w8a8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a program for each row."""
    numbers, total, scales = _norm(x, residual, weight, eps, True)
    return numbers, scales, total


@limited(lambda x: x.dtype in FLOATS and 0 < x.shape[-1] <= LONGEST)
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Run a program for each row."""
    given, count, apart = rows(x)
    numbers = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if count:
        block = power(x.shape[-1])
        kernels.quantised[(count,)](
            given, numbers, scales, x.shape[-1], apart, block, num_warps=warps(block)
        )
    return numbers, scales


def _gated(x: Tensor, kind: str) -> Tensor:
    given, count, apart = rows(x)
    half = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    if count and half:
        block = min(1024, power(half))
        kernels.gated[(count, -(-half // block))](given, y, half, apart, kind, block)
    return y


def _halves(x: Tensor) -> bool:
    return x.dtype in FLOATS and x.shape[-1] % 2 == 0


@limited(_halves)
def silu_and_mul(x: Tensor) -> Tensor:
    """Run programs for parts of rows."""
    return _gated(x, "silu")


@limited(_halves)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Run programs for parts of rows."""
    return _gated(x, "gelu" if approximate == "none" else "gelu_tanh")


def _turnable(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    shapes = q.dim() == k.dim() == 3 and cos.dim() == 2 and cos.shape == sin.shape
    return (
        shapes
        and same(q, k)
        and same(cos, sin)
        and q.shape[0] == k.shape[0] == cos.shape[0]
        and q.shape[2] == k.shape[2] >= cos.shape[1] > 0 == cos.shape[1] % 2
    )


@limited(_turnable)
def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Run a program for a few heads of a token."""
    q, k = dense(q), dense(k)
    tokens, heads, size = q.shape
    shared, turned = k.shape[1], cos.shape[1]
    out = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k)]
    if tokens:
        few = min(8, power(heads))
        kernels.rotary[(tokens, -(-heads // few) + -(-shared // few))](
            q, k, cos.contiguous(), sin.contiguous(), *out, heads, shared,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), size, turned,
            interleaved, few, power(turned // 2), power(size - turned) if size > turned else 0,
        )  # fmt: skip
    return out[0], out[1]


def _fillable(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    k_zeros: Tensor | None,
    v_zeros: Tensor | None,
) -> bool:
    quantised = k_scales is not None
    alike = quantised == (v_scales is not None) and (k_zeros is None) == (v_zeros is None)
    kinds = (torch.int8,) if quantised else FLOATS
    shapes = k.dim() == v.dim() == 3 and k_cache.dim() == v_cache.dim() == 4
    return (
        alike
        and shapes
        and same(k, v)
        and k_cache.dtype == v_cache.dtype in kinds
        and k_cache.stride(3) == v_cache.stride(3) == 1
        and k_cache.shape[:2] == v_cache.shape[:2]
        and k_cache.shape[2:] == k.shape[1:]
        and v_cache.shape[2:] == v.shape[1:]
        and k.shape[1] == v.shape[1]
        and slots.dtype in WHOLE
        and slots.shape == k.shape[:1]
    )


def spread(scales: Tensor | None, heads: int, size: int, otherwise: Tensor) -> Tensor:
    """Expand scales or zeros to every element of a head, in float32;
    `otherwise` if there are none.
    """
    if scales is None:
        return otherwise
    return scales.float().expand(heads, size).contiguous()


@limited(_fillable)
def fill_kv_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> None:
    """Run a program for each head of a token; a slot outside of the cache is skipped."""
    tokens, heads, size = k.shape
    value_size = v.shape[2]
    if not tokens:
        return
    k, v = dense(k), dense(v)
    scales = (
        spread(k_scales, heads, size, k),
        spread(v_scales, heads, value_size, k),
        spread(k_zeros, heads, size, k),
        spread(v_zeros, heads, value_size, k),
    )
    kernels.fill[(tokens, heads)](
        k, v, k_cache, v_cache, slots.contiguous(), *scales,
        k_cache.shape[0] * k_cache.shape[1], k_cache.shape[1],
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        *k_cache.stride()[:3], *v_cache.stride()[:3], size, value_size,
        k_scales is not None, k_zeros is not None, power(size), power(value_size), num_warps=1,
    )  # fmt: skip
