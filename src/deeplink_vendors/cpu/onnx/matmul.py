# SPDX-License-Identifier: Apache-2.0
"""Conversions of matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import computes, fake, reason
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value

aten = torch.ops.aten


@computes(aten.mm.default, aten.bmm.default)
def product(e: OnnxEmitter, node: fx.Node, a: Value, b: Value) -> Name:
    return e.op("MatMul", a, b)


@computes(aten.addmm.default, aten.baddbmm.default)
def added_product(
    e: OnnxEmitter, node: fx.Node, c: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1
) -> Name:
    if a.rank == 2 and a.dtype.is_floating_point:
        if not beta:  # nan and inf of a term with factor 0 do not count
            return e.op("Gemm", a, b, alpha=float(alpha))
        return e.op("Gemm", a, b, c, alpha=float(alpha), beta=float(beta))
    made = e.op("MatMul", a, b)
    if alpha != 1:
        made = e.op("Mul", made, e.number(alpha, a.dtype))
    if not beta:
        return made
    scaled = e.op("Mul", c, e.number(beta, a.dtype)) if beta != 1 else c
    return e.op("Add", made, scaled)


@computes(aten.convolution.default)
def convolution(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    w: Value,
    b: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Name:
    dims = w.rank - 2
    attributes: dict[str, Any] = {
        "strides": spread(stride, dims),
        "pads": spread(padding, dims) * 2,
        "dilations": spread(dilation, dims),
        "group": groups,
        "kernel_shape": [int(size) for size in w.shape[2:]],
    }
    given = (x, w) if b is None else (x, w, b)
    if not transposed:
        return e.op("Conv", *given, **attributes)
    return e.op("ConvTranspose", *given, output_padding=spread(output_padding, dims), **attributes)


def spread(values: int | list[int], dims: int) -> list[int]:
    """Return one number for every dimension."""
    listed = [values] if isinstance(values, int) else list(values)
    return listed * dims if len(listed) == 1 else listed


@reason(aten.convolution.default)
def _why_not_convolved(node: fx.Node) -> str | None:
    x, w = fake(node.args[0]), fake(node.args[1])
    if x.dim() != w.dim():
        return "the input of a convolution has no batch"
    if not all(isinstance(size, int) for size in w.shape[2:]):
        return "the size of a convolution's window is unknown"
    transposed, output_padding = node.args[6], spread(node.args[7], w.dim() - 2)  # type: ignore[arg-type]
    stride = spread(node.args[3], w.dim() - 2)  # type: ignore[arg-type]
    if transposed and any(pad >= step for pad, step in zip(output_padding, stride, strict=True)):
        return "padding of the output by a stride or more"
    if not x.dtype.is_floating_point:
        return f"there is no convolution in {x.dtype}"
    return None
