# SPDX-License-Identifier: Apache-2.0
"""Conversions of products, convolutions, pools, norms and the fused ops of `dicp.fused`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

import dicp.fused  # noqa: F401  # the ops of torch.ops.dicp
from deeplink_vendors.ascend.graph.builder import Builder, Value, described
from deeplink_vendors.ascend.graph.conversions import register_conversion
from dicp.conversion import NotTaken, pairs

aten, fused = torch.ops.aten, torch.ops.dicp

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "gelu": ("GeluV2", {"approximate": "none"}),
    "gelu_tanh": ("GeluV2", {"approximate": "tanh"}),
    "silu": ("Swish", {"scale": 1.0}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
}


def activated(b: Builder, node: fx.Node, x: Value, activation: str) -> Value:
    if not activation:
        return x
    kind, attrs = ACTIVATIONS[activation]
    return b.like(node, kind, x, **attrs)


def _floating(node: fx.Node) -> None:
    if not described(node)[0].is_floating_point:
        raise NotTaken("GE multiplies matrices of floats")


@register_conversion(aten.mm.default)
def mm(b: Builder, node: fx.Node, x: Value, y: Value) -> Value:
    _floating(node)
    return b.like(node, "MatMulV2", x, y, transpose_x1=False, transpose_x2=False)


@register_conversion(aten.bmm.default)
def bmm(b: Builder, node: fx.Node, x: Value, y: Value) -> Value:
    _floating(node)
    return b.like(node, "BatchMatMulV2", x, y, adj_x1=False, adj_x2=False)


@register_conversion(aten.addmm.default)
def addmm(
    b: Builder, node: fx.Node, bias: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1
) -> Value:
    _floating(node)
    if beta == 1 and alpha == 1 and bias.dim == 1:
        return b.like(node, "MatMulV2", x, y, bias, transpose_x1=False, transpose_x2=False)
    product = b.like(node, "MatMulV2", x, y, transpose_x1=False, transpose_x2=False)
    scaled = [
        part
        if by == 1
        else b.op("Mul", [part, b.scalar(by, part.dtype)], [(part.dtype, part.shape)])
        for part, by in ((product, alpha), (bias, beta))
    ]
    return b.like(node, "Add", *scaled)


@register_conversion(fused.linear.default)
def linear(
    b: Builder, node: fx.Node, x: Value, w: Value, bias: Value | None = None, activation: str = ""
) -> Value:
    if x.dim == 1:
        raise NotTaken("a row without a batch")
    if x.dim == 2:
        done = b.like(node, "MatMulV2", x, w, bias, transpose_x1=False, transpose_x2=True)
    else:
        done = b.like(node, "BatchMatMulV2", x, w, bias, adj_x1=False, adj_x2=True)
    return activated(b, node, done, activation)


@register_conversion(aten.convolution.default)
def convolution(
    b: Builder,
    node: fx.Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if transposed:
        raise NotTaken("GE's Conv2DTranspose takes neither float32 nor bfloat16")
    return conv(b, node, x, w, bias, stride, padding, dilation, groups)


@register_conversion(fused.conv.default)
def conv(
    b: Builder,
    node: fx.Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str = "",
) -> Value:
    if x.dim != 4:
        raise NotTaken("a convolution of one or three dimensions")
    attrs = conv_attrs(stride, padding, dilation, groups)
    return activated(b, node, b.like(node, "Conv2D", x, w, bias, **attrs), activation)


def conv_attrs(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Any]:
    """Return attributes with two numbers each, or one for both, in GE's form for NCHW."""
    stride, padding, dilation = pairs(stride, padding, dilation)
    return {
        "strides": [1, 1, *stride],
        "pads": [padding[0], padding[0], padding[1], padding[1]],
        "dilations": [1, 1, *dilation],
        "groups": groups,
        "data_format": "NCHW",
    }


@register_conversion(fused.batch_norm.default)
def batch_norm(
    b: Builder,
    node: fx.Node,
    x: Value,
    w: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    """Compute (x - mean) * (w / sqrt(var + eps)) + bias, in float32.

    Not by BNInfer: it supports no bfloat16, and only images.
    """
    dtype, shape = described(node)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sizes = (1, -1, *[1] * (x.dim - 2))

    def row(value: Value) -> Value:
        flat = b.cast(value, wide)
        out = (wide, (1, value.shape[0], *sizes[2:]))
        return b.op("Reshape", [flat, b.ints(sizes)], [out])

    def step(kind: str, left: Value, right: Value, like: Sequence[Any]) -> Value:
        return b.op(kind, [left, right], [(wide, like)])

    spread = step("Add", row(var), b.scalar(eps, wide), row(var).shape)
    factor = b.op("Rsqrt", [spread], [(wide, spread.shape)])
    if w is not None:
        factor = step("Mul", factor, row(w), factor.shape)
    done = step("Mul", step("Sub", b.cast(x, wide), row(mean), shape), factor, shape)
    if bias is not None:
        done = step("Add", done, row(bias), shape)
    return b.cast(done, dtype)


@register_conversion(fused.layer_norm.default)
def layer_norm(
    b: Builder, node: fx.Node, x: Value, dims: int, w: Value | None, bias: Value | None, eps: float
) -> Value:
    return normed(b, x, dims, w, bias, eps)[0]


@register_conversion(aten.native_layer_norm.default)
def native_layer_norm(
    b: Builder,
    node: fx.Node,
    x: Value,
    shape: Sequence[Any],
    w: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value]:
    kept = [value.dtype for value in node.meta["val"]]
    results = normed(b, x, len(shape), w, bias, eps)
    return [b.cast(v, dtype) for v, dtype in zip(results, kept, strict=True)]


def normed(
    b: Builder, x: Value, dims: int, w: Value | None, bias: Value | None, eps: float
) -> list[Value]:
    """Return the norm, the mean and the inverse deviation."""
    sizes = b.ints([b.size(x, dim - dims) for dim in range(dims)])
    rows = (*x.shape[: x.dim - dims], *[1] * dims)
    wide = torch.float32 if x.dtype != torch.float64 else x.dtype
    outs = [(x.dtype, x.shape), (wide, rows), (wide, rows)]
    return b.several("LayerNormV4", [x, sizes, w, bias], outs, epsilon=eps)


@register_conversion(fused.rms_norm.default)
def rms_norm(b: Builder, node: fx.Node, x: Value, w: Value, eps: float) -> Value:
    outs = [(x.dtype, x.shape), (torch.float32, (*x.shape[:-1], 1))]
    result = b.op("RmsNorm", [x, b.cast(w, x.dtype)], outs, epsilon=eps)
    return b.cast(result, described(node)[0])


@register_conversion(aten.native_group_norm.default)
def native_group_norm(
    b: Builder,
    node: fx.Node,
    x: Value,
    w: Value | None,
    bias: Value | None,
    batch: Any,
    channels: Any,
    pixels: Any,
    groups: int,
    eps: float,
) -> list[Value]:
    if not isinstance(channels, int):
        raise NotTaken("a number of channels that changes")
    w = w or b.const(torch.ones(channels, dtype=x.dtype))
    bias = bias or b.const(torch.zeros(channels, dtype=x.dtype))
    values = node.meta["val"]
    outs = [(value.dtype, value.shape) for value in values]
    return b.several(
        "GroupNormV2",
        [x, w, bias],
        outs,
        num_groups=groups,
        data_format="NCHW",
        eps=eps,
        is_training=True,
    )


@register_conversion(fused.rope.default)
def rope(b: Builder, node: fx.Node, x: Value, cos: Value, sin: Value) -> Value:
    """Convert to RotaryMul, which requires four dimensions in each argument."""
    if x.dim != 4 or not cos.dim or cos.dim > 4 or sin.dim != cos.dim:
        raise NotTaken("not of four dimensions")
    return b.like(node, "RotaryMul", x, *(_of_four(b, b.cast(v, x.dtype)) for v in (cos, sin)))


def _of_four(b: Builder, x: Value) -> Value:
    missing = 4 - x.dim
    if not missing:
        return x
    out = (x.dtype, (*[1] * missing, *x.shape))
    return b.op("Unsqueeze", [x], [out], axes=list(range(missing)))


@register_conversion(fused.swiglu.default)
def swiglu(b: Builder, node: fx.Node, gate: Value, up: Value) -> Value:
    last = gate.shape[-1]
    double = 2 * last if isinstance(last, int) else -1
    both = b.concat([gate, up], gate.dim - 1, (gate.dtype, (*gate.shape[:-1], double)))
    return b.like(node, "SwiGlu", both, dim=-1)


@register_conversion(fused.sdpa.default)
def sdpa(
    b: Builder,
    node: fx.Node,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Value:
    """Convert to products and a softmax, in every type.

    PromptFlashAttention's prototype has no bfloat16, and requires a mask of its own type.
    """
    if q.dim != 4 or not isinstance(q.shape[-1], int):
        raise NotTaken("not [batch, heads, sequence, size] of known size")
    k, v = (_for_each_query(b, value, q) for value in (k, v))
    dtype, wide = q.dtype, torch.float32 if q.dtype != torch.float64 else q.dtype
    by = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    shape = (*q.shape[:-1], k.shape[-2])
    scores = b.op("BatchMatMulV2", [q, k], [(dtype, shape)], adj_x1=False, adj_x2=True)
    scores = b.op("Mul", [b.cast(scores, wide), b.scalar(by, wide)], [(wide, shape)])
    if causal:
        scores = _hidden(b, scores, _lower(b, scores, q, k))
    if mask is not None and mask.dtype == torch.bool:
        scores = _hidden(b, scores, mask)
    elif mask is not None:
        scores = b.op("Add", [scores, b.cast(mask, wide)], [(wide, shape)])
    weights = b.cast(b.op("SoftmaxV2", [scores], [(wide, shape)], axes=[-1]), dtype)
    return b.like(node, "BatchMatMulV2", weights, v, adj_x1=False, adj_x2=False)


def _for_each_query(b: Builder, x: Value, q: Value) -> Value:
    """Repeat keys or values of fewer heads than q has, for its queries."""
    if x.shape[1] == q.shape[1]:
        return x
    if not isinstance(x.shape[1], int) or not isinstance(q.shape[1], int):
        raise NotTaken("numbers of heads that change")
    times = q.shape[1] // x.shape[1]
    batch, length, size = (b.size(x, dim) for dim in (0, 2, 3))
    shape = (x.shape[0], x.shape[1], times, *x.shape[2:])
    apart = b.op("Unsqueeze", [x], [(x.dtype, (*shape[:2], 1, *shape[3:]))], axes=[2])
    sizes = b.ints([batch, x.shape[1], times, length, size])
    spread = b.op("BroadcastTo", [apart, sizes], [(x.dtype, shape)])
    whole = b.ints([batch, q.shape[1], length, size])
    out = (x.dtype, (x.shape[0], q.shape[1], *x.shape[2:]))
    return b.op("Reshape", [spread, whole], [out])


def _hidden(b: Builder, scores: Value, seen: Value) -> Value:
    nothing = b.scalar(-math.inf, scores.dtype)
    out = (scores.dtype, scores.shape)
    return b.op("SelectV2", [seen, scores, nothing], [out])


def _lower(b: Builder, scores: Value, q: Value, k: Value) -> Value:
    """Return which keys each query sees: a triangle that is created at run time, for its sizes."""
    rows, columns = b.size(q, 2), b.size(k, 2)
    sizes = scores.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int):
        return b.const(torch.ones(rows, columns, dtype=torch.bool).tril())
    ones = b.op(
        "Fill", [b.ints([rows, columns]), b.scalar(1.0, torch.float32)], [(torch.float32, sizes)]
    )
    triangle = b.op("Tril", [ones], [(torch.float32, sizes)])
    return b.op("Greater", [triangle, b.scalar(0.0, torch.float32)], [(torch.bool, sizes)])


@register_conversion(aten._native_batch_norm_legit_functional.default)
def batch_norm_training(
    b: Builder,
    node: fx.Node,
    x: Value,
    w: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value]:
    """Return the norm by the batch's own statistics, these, and the new running statistics.

    In float32 and step by step: BNTrainingUpdate supports no bfloat16, and only images.
    """
    if not training:
        raise NotTaken("training of a norm by running statistics")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    axes = [0, *range(2, x.dim)]
    row = (1, x.shape[1], *[1] * (x.dim - 2))
    flat = (x.shape[1],)

    def step(kind: str, left: Value, right: Value, shape: Sequence[Any]) -> Value:
        return b.op(kind, [left, right], [(wide, shape)])

    def in_row(value: Value) -> Value:
        sizes = b.ints([1, -1, *row[2:]])
        return b.op("Reshape", [b.cast(value, wide), sizes], [(wide, row)])

    def averaged(value: Value) -> Value:
        return b.op("ReduceMean", [value, b.ints(axes)], [(wide, row)], keep_dims=True)

    def flattened(value: Value) -> Value:
        return b.op("Reshape", [value, b.ints([-1])], [(wide, flat)])

    up = b.cast(x, wide)
    mean = averaged(up)
    away = step("Sub", up, mean, x.shape)
    var = averaged(step("Mul", away, away, x.shape))
    rstd = b.op("Rsqrt", [step("Add", var, b.scalar(eps, wide), row)], [(wide, row)])
    done = step("Mul", away, rstd, x.shape)
    if w is not None:
        done = step("Mul", done, in_row(w), x.shape)
    if bias is not None:
        done = step("Add", done, in_row(bias), x.shape)
    count = _count(b, x, axes, wide)
    fewer = step("Sub", count, b.scalar(1, wide), ())
    unbiased = step("Mul", flattened(var), step("RealDiv", count, fewer, ()), flat)
    results = [done, flattened(mean), flattened(rstd)]
    for new, old in ((results[1], running_mean), (unbiased, running_var)):
        fresh = step("Mul", new, b.scalar(momentum, wide), flat)
        stale = step("Mul", b.cast(old, wide), b.scalar(1 - momentum, wide), flat)
        results.append(step("Add", fresh, stale, flat))
    kept = [value.dtype for value in node.meta["val"]]
    return [b.cast(value, dtype) for value, dtype in zip(results, kept, strict=True)]


def _count(b: Builder, x: Value, axes: Sequence[int], dtype: torch.dtype) -> Value:
    """Return the number of elements along these dimensions, as a number of this type."""
    sizes = [b.size(x, axis) for axis in axes]
    total = b.scalar(math.prod(size for size in sizes if isinstance(size, int)), dtype)
    for size in sizes:
        if isinstance(size, Value):
            total = b.op("Mul", [total, b.cast(size, dtype)], [(dtype, ())])
    return total
