# SPDX-License-Identifier: Apache-2.0
"""Conversions of the ops of backward graphs, in addition to the forward ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value
from deeplink_vendors.ascend.graph.conversions import register_conversion
from deeplink_vendors.ascend.graph.products import conv_attrs
from dicp.conversion import NotTaken

aten = torch.ops.aten


@register_conversion(aten._softmax_backward_data.default)
def softmax_backward(
    b: Builder, node: fx.Node, grad: Value, output: Value, dim: int, dtype: torch.dtype
) -> Value:
    return b.like(node, "SoftmaxGrad", b.cast(output, grad.dtype), grad, axes=[dim])


@register_conversion(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    b: Builder, node: fx.Node, grad: Value, output: Value, dim: int, dtype: torch.dtype
) -> Value:
    return b.like(node, "LogSoftmaxGrad", grad, output, axis=[dim])


@register_conversion(aten.gelu_backward.default)
def gelu_backward(
    b: Builder, node: fx.Node, grad: Value, x: Value, approximate: str = "none"
) -> Value:
    return b.like(node, "GeluGradV2", grad, x, approximate=approximate)


@register_conversion(aten.threshold_backward.default)
def threshold_backward(b: Builder, node: fx.Node, grad: Value, x: Value, threshold: Any) -> Value:
    """The gradient of relu only: GE's gradient of a threshold has no float32."""
    if threshold != 0:
        raise NotTaken("a threshold that is not zero")
    return b.like(node, "ReluGrad", grad, x)


@register_conversion(aten.tanh_backward.default)
def tanh_backward(b: Builder, node: fx.Node, grad: Value, output: Value) -> Value:
    return b.like(node, "TanhGrad", output, grad)


@register_conversion(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, node: fx.Node, grad: Value, output: Value) -> Value:
    return b.like(node, "SigmoidGrad", output, grad)


@register_conversion(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, node: fx.Node, grad: Value, indices: Value, rows: int, padding: int, by_count: bool
) -> Value:
    return b.like(
        node,
        "EmbeddingDenseGrad",
        grad,
        indices,
        num_weights=rows,
        padding_idx=padding,
        scale_grad_by_freq=by_count,
    )


@register_conversion(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder,
    node: fx.Node,
    grad: Value,
    x: Value,
    shape: Sequence[Any],
    mean: Value,
    rstd: Value,
    w: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
) -> list[Value | None]:
    if not all(isinstance(size, int) for size in shape):
        raise NotTaken("over sizes that are known only when it runs")
    given = w or b.const(torch.ones(list(shape), dtype=x.dtype))
    wide = torch.float32
    outs = [(x.dtype, x.shape), (wide, given.shape), (wide, given.shape)]
    found = b.several("LayerNormGradV3", [grad, x, rstd, mean, given], outs)
    found = [found[0], *(b.cast(value, given.dtype) for value in found[1:])]
    return [value if wanted else None for value, wanted in zip(found, mask, strict=True)]


@register_conversion(aten.convolution_backward.default)
def convolution_backward(
    b: Builder,
    node: fx.Node,
    grad: Value,
    x: Value,
    w: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> list[Value | None]:
    if transposed or x.dim != 4:
        raise NotTaken("a transposed convolution, or not of two dimensions")
    attrs = conv_attrs(stride, padding, dilation, groups)
    results: list[Value | None] = [None, None, None]
    if mask[0]:
        sizes = b.ints([b.size(x, dim) for dim in range(4)], torch.int32)
        out = (x.dtype, x.shape)
        results[0] = b.op("Conv2DBackpropInput", [sizes, w, grad], [out], **attrs)
    if mask[1]:
        sizes = b.ints([b.size(w, dim) for dim in range(4)], torch.int32)
        out = (w.dtype, w.shape)
        results[1] = b.op("Conv2DBackpropFilter", [x, sizes, grad], [out], **attrs)
    if mask[2]:
        out = (grad.dtype, (grad.shape[1],))
        results[2] = b.op("ReduceSum", [grad, b.ints([0, 2, 3])], [out], keep_dims=False)
    return results
