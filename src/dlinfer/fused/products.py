# SPDX-License-Identifier: Apache-2.0
"""Matrix products: plain, over several processes, with quantised weights or operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diopi import meanings
from dlinfer.op import op, wide


def _alone(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: str = "") -> Any:
    return NotImplemented if group else F.linear(x, weight, bias).contiguous()


@op('Tensor x, Tensor weight, Tensor? bias=None, str group=""', in_graphs=_alone)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: str = "") -> Tensor:
    """Compute x @ weight.T + bias, weight [out, in];
    summed over the named process group, if any.
    """
    product = F.linear(x, weight, bias).contiguous()
    return summed(product, group) if group else product


def summed(x: Tensor, group: str) -> Tensor:
    """Return the sum over a process group."""
    functional = torch.ops._c10d_functional
    done: Tensor = functional.wait_tensor(functional.all_reduce(x, "sum", group))
    return done


@op(
    "Tensor x, Tensor weight, Tensor scale, Tensor? offset=None, Tensor? bias=None, "
    "int group_size=0",
)
def weight_quant_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 0,
) -> Tensor:
    """Compute x @ ((weight + offset) * scale).T + bias, weight [out, in] of int8 or float8_e4m3fn.

    uint8 holds two numbers of 4 bits, [out, in / 2], the lower bits first. scale and offset are
    [out, in / group_size]; one group when it is 0. A scale with fewer rows has one for each
    group_size rows of the weight, or one for all.
    """
    if weight.dtype == torch.uint8:
        weight = torch.stack((weight & 15, weight >> 4), -1).flatten(-2)
    outer, inner = weight.shape
    size = group_size or inner
    groups = spread(wide(scale), group_size, outer).repeat_interleave(size, 1)[:, :inner]
    numbers = weight.to(groups.dtype)
    if offset is not None:
        numbers = numbers + wide(offset).repeat_interleave(size, 1)[:, :inner]
    return F.linear(x, (numbers * groups).to(x.dtype), bias).contiguous()


def spread(scale: Tensor, group_size: int, outer: int) -> Tensor:
    """Return a scale with a row for each row of the weight."""
    if scale.shape[0] == outer:
        return scale
    each = outer if scale.shape[0] == 1 else group_size
    return scale.repeat_interleave(each, 0)[:outer]


@op("Tensor x", "(Tensor, Tensor)")
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (int8, scale [..., 1] in float32): x / scale, rounded;
    each row's largest becomes 127.
    """
    rows = wide(x)
    scale = rows.abs().amax(-1, keepdim=True) / 127
    # a row of zeros has no scale, and stays zeros
    numbers = (rows / torch.where(scale == 0, 1.0, scale)).round().clamp(-127, 127)
    return numbers.to(torch.int8).contiguous(), scale.float()


@op(
    "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, ScalarType out_dtype, Tensor? bias=None",
)
def linear_w8a8(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute (a @ b.T) * a_scale * b_scale + bias; a [..., in] and b [out, in] of int8.

    a_scale is [..., 1], b_scale [out] or [out, 1]; the product is exact in int32.
    """
    product = F.linear(a.double(), b.double())  # exact: 53 bits hold every sum of these products
    scaled = product * a_scale * b_scale.reshape(-1)
    return (scaled if bias is None else scaled + bias).to(out_dtype).contiguous()


@op(
    "Tensor x, Tensor weight, Tensor input_scale, Tensor input_offset, Tensor deq_scale, "
    "ScalarType out_dtype, Tensor? bias=None",
)
def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute (a @ weight.T + bias) * deq_scale of a = x / input_scale + input_offset in int8.

    input_scale and input_offset [1] are known before x is; weight [out, in] is of int8, bias [out]
    of int32 and deq_scale [out] of float32. The product and the sum are exact in int32.
    """
    numbers = (wide(x) / wide(input_scale) + wide(input_offset)).round().clamp(-128, 127)
    product = F.linear(numbers.double(), weight.double())  # exact, as in `linear_w8a8`
    whole = product if bias is None else product + bias
    return (whole * deq_scale.reshape(-1)).to(out_dtype).contiguous()


@op("Tensor x, Tensor weight, float eps", "(Tensor, Tensor)")
def rms_norm_w8a8(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return dynamic_quant of rms_norm."""
    numbers, scale = dynamic_quant(meanings.rms_norm(x, weight, eps))
    return numbers, scale


@op("Tensor x, Tensor residual, Tensor weight, float eps", "(Tensor, Tensor, Tensor)")
def add_rms_norm_w8a8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (int8, scale, x + residual): dynamic_quant of add_rms_norm."""
    total = (x + residual).contiguous()
    numbers, scale = dynamic_quant(meanings.rms_norm(total, weight, eps))
    return numbers, scale, total
