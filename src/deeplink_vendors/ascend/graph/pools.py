"""Conversions of pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value
from deeplink_vendors.ascend.graph.conversions import register_conversion
from dicp.conversion import NotTaken

aten = torch.ops.aten


def _windows(*parts: Sequence[int]) -> list[list[int]]:
    return [list(part) * (3 - len(part)) for part in parts]


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
    (kh, kw), (sh, sw), (ph, pw) = _windows(kernel, stride or kernel, padding)
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
    """The values; who asks for their places stays eager."""
    asked = any(user.args[1] == 1 for user in node.users if user.users)
    if x.dim != 4 or ceil_mode or set(dilation) != {1} or asked:
        raise NotTaken("not of four dimensions, rounded up, dilated, or asked for places")
    (kh, kw), (sh, sw), (ph, pw) = _windows(kernel, stride or kernel, padding)
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
