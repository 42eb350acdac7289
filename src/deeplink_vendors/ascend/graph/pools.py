# SPDX-License-Identifier: Apache-2.0
"""Conversions of pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value
from deeplink_vendors.ascend.graph.conversions import register_conversion
from dicp.conversion import NotTaken, averages, check_max_pool, pairs

aten = torch.ops.aten


@register_conversion(aten.avg_pool2d.default)
def avg_pool2d(
    b: Builder,
    node: fx.Node,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    if x.dim != 4 or ceil_mode:
        raise NotTaken("not of four dimensions, or rounded up")
    (kh, kw), (sh, sw), (ph, pw) = pairs(kernel, stride or kernel, padding)
    return b.like(
        node,
        "AvgPoolV2",
        x,
        ksize=[1, 1, kh, kw],
        strides=[1, 1, sh, sw],
        padding_mode="CALCULATED",
        pads=[ph, ph, pw, pw],
        data_format="NCHW",
        exclusive=not count_include_pad,
        divisor_override=divisor or 0,
    )


@register_conversion(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(b: Builder, node: fx.Node, x: Value, size: Sequence[Any]) -> Value:
    if not all(isinstance(number, int) for number in size):
        raise NotTaken("a size that changes")
    return b.like(node, "AdaptiveAvgPool2d", x, output_size=list(size))


@register_conversion(aten.max_pool2d_with_indices.default)
def max_pool2d(
    b: Builder,
    node: fx.Node,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Value]:
    """Convert to the values; a call that uses the indices stays eager."""
    check_max_pool(node, x.dim, dilation, ceil_mode)
    (kh, kw), (sh, sw), (ph, pw) = pairs(kernel, stride or kernel, padding)
    value = node.meta["val"][0]
    found = b.op(
        "MaxPoolV3",
        [x],
        [(value.dtype, value.shape)],
        ksize=[1, 1, kh, kw],
        strides=[1, 1, sh, sw],
        padding_mode="CALCULATED",
        pads=[ph, ph, pw, pw],
        data_format="NCHW",
    )
    return [found]


@register_conversion(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: Builder, node: fx.Node, grad: Value, x: Value) -> Value:
    """Distribute each pixel of the gradient to its window:
    a product with weights on either side.
    """
    sizes = (*x.shape[-2:], *grad.shape[-2:])
    if not all(isinstance(size, int) for size in sizes):
        raise NotTaken("a size that changes")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows, columns = (
        b.const(averages(inner, outer).to(wide))
        for inner, outer in zip(sizes[:2], sizes[2:], strict=True)
    )
    batch = grad.shape[:-2]
    order = b.ints([*range(grad.dim - 2), grad.dim - 1, grad.dim - 2])

    def product(left: Value, right: Value) -> Value:
        shape = (*batch, left.shape[-2], right.shape[-1])
        given = [left, right]
        return b.op("BatchMatMulV2", given, [(wide, shape)], adj_x1=False, adj_x2=False)

    def turned(value: Value) -> Value:
        shape = (*batch, value.shape[-1], value.shape[-2])
        return b.op("Transpose", [value, order], [(wide, shape)])

    by_columns = turned(product(b.cast(grad, wide), columns))
    return b.cast(turned(product(by_columns, rows)), x.dtype)
