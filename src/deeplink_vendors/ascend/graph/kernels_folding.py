# SPDX-License-Identifier: Apache-2.0
"""Kernels of the simulator that reduce or combine: reductions, products, convolutions, norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink_vendors.ascend.graph.graph import FROM_ATTRIBUTE
from deeplink_vendors.ascend.graph.kernels import Attrs, kernel, number, numbers

aten = torch.ops.aten


@kernel("ReduceSum")
def reduce_sum(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return x.sum(numbers(axes), attrs["keep_dims"], dtype=x.dtype)


@kernel("ReduceMean")
def reduce_mean(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return x.mean(numbers(axes), attrs["keep_dims"])


@kernel("ReduceMax")
def reduce_max(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return x.amax(numbers(axes), attrs["keep_dims"])


@kernel("ReduceMin")
def reduce_min(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return x.amin(numbers(axes), attrs["keep_dims"])


@kernel("ReduceProd")
def reduce_prod(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted(numbers(axes), reverse=True):
        x = x.prod(axis, attrs["keep_dims"], dtype=x.dtype)
    return x


@kernel("ReduceAny")
def reduce_any(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return torch.any(x, numbers(axes), attrs["keep_dims"])


@kernel("ReduceAll")
def reduce_all(attrs: Attrs, x: Tensor, axes: Tensor) -> Tensor:
    return torch.all(x, numbers(axes), attrs["keep_dims"])


@kernel("ArgMaxV2")
def arg_max(attrs: Attrs, x: Tensor, dimension: Tensor) -> Tensor:
    return x.argmax(number(dimension)).to(FROM_ATTRIBUTE[attrs["dtype"]])


@kernel("ArgMin")
def arg_min(attrs: Attrs, x: Tensor, dimension: Tensor) -> Tensor:
    return x.argmin(number(dimension)).to(FROM_ATTRIBUTE[attrs["dtype"]])


@kernel("Cumsum")
def cumsum(attrs: Attrs, x: Tensor, axis: Tensor) -> Tensor:
    if attrs["exclusive"] or attrs["reverse"]:
        raise NotImplementedError("Cumsum that is exclusive or reversed")
    return x.cumsum(number(axis), dtype=x.dtype)


@kernel("TopKV2", "TopK")
def top_k(attrs: Attrs, x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.topk(x, number(k), attrs["dim"], attrs["largest"], attrs["sorted"])
    return found.values, found.indices.int()


@kernel("Sort")
def sort(attrs: Attrs, x: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.sort(x, stable=attrs["stable"], dim=attrs["axis"], descending=attrs["descending"])
    return found.values, found.indices.int()


@kernel("SoftmaxV2")
def softmax(attrs: Attrs, x: Tensor) -> Tensor:
    (axis,) = attrs["axes"]
    return F.softmax(x, axis, dtype=torch.float32 if attrs["half_to_float"] else None)


@kernel("LogSoftmaxV2")
def log_softmax(attrs: Attrs, x: Tensor) -> Tensor:
    (axis,) = attrs["axes"]
    return F.log_softmax(x, axis)


@kernel("SoftmaxGrad")
def softmax_grad(attrs: Attrs, softmax: Tensor, grad: Tensor) -> Any:
    (axis,) = attrs["axes"]
    return aten._softmax_backward_data(grad, softmax, axis, grad.dtype)


@kernel("LogSoftmaxGrad")
def log_softmax_grad(attrs: Attrs, grad: Tensor, x: Tensor) -> Any:
    """Return the gradient of log_softmax; `x` is the result of the forward."""
    (axis,) = attrs["axis"]
    return aten._log_softmax_backward_data(grad, x, axis, grad.dtype)


@kernel("MatMulV2", "MatMul")
def mat_mul(
    attrs: Attrs, x: Tensor, y: Tensor, bias: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    return _product(x, y, attrs["transpose_x1"], attrs["transpose_x2"], bias)


@kernel("BatchMatMulV2", "BatchMatMul")
def batch_mat_mul(
    attrs: Attrs, x: Tensor, y: Tensor, bias: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    return _product(x, y, attrs["adj_x1"], attrs["adj_x2"], bias)


def _product(x: Tensor, y: Tensor, turn_x: bool, turn_y: bool, bias: Tensor | None) -> Tensor:
    if turn_y and y.dim() == 2 and not turn_x:
        return F.linear(x, y, bias)
    product = (x.mT if turn_x else x) @ (y.mT if turn_y else y)
    return product if bias is None else product + bias


def _image(attrs: Attrs) -> tuple[list[int], list[int], list[int]]:
    """Return strides, paddings (top, bottom, left, right) and dilations of an NCHW image."""
    if attrs["data_format"] != "NCHW":
        raise NotImplementedError(f"images in {attrs['data_format']}")
    return attrs["strides"][2:], attrs["pads"], attrs["dilations"][2:]


@kernel("Conv2D")
def conv2d(
    attrs: Attrs, x: Tensor, w: Tensor, bias: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    strides, (top, bottom, left, right), dilations = _image(attrs)
    padding = [top, left]
    if (top, left) != (bottom, right):
        x, padding = F.pad(x, (left, right, top, bottom)), [0, 0]
    rest = (strides, padding, dilations, attrs["groups"])
    if bias is None or bias.dtype == x.dtype:
        return F.conv2d(x, w, bias, *rest)
    return F.conv2d(x.float(), w.float(), bias, *rest).to(x.dtype)  # a float32 bias


@kernel("Conv2DBackpropInput")
def conv2d_input(attrs: Attrs, size: Tensor, w: Tensor, grad: Tensor) -> Tensor:
    x = grad.new_empty(numbers(size))
    return _conv_backward(attrs, grad, x, w, [True, False, False])[0]


@kernel("Conv2DBackpropFilter")
def conv2d_filter(attrs: Attrs, x: Tensor, size: Tensor, grad: Tensor) -> Tensor:
    w = grad.new_empty(numbers(size))
    return _conv_backward(attrs, grad, x, w, [False, True, False])[1]


def _conv_backward(
    attrs: Attrs, grad: Tensor, x: Tensor, w: Tensor, wanted: list[bool]
) -> list[Tensor]:
    strides, (top, _, left, _), dilations = _image(attrs)
    rest = (strides, [top, left], dilations, False, [0, 0], attrs["groups"], wanted)
    return list(aten.convolution_backward(grad, x, w, None, *rest))


def _pooling(attrs: Attrs) -> tuple[list[int], list[int], list[int]]:
    if attrs["padding_mode"] != "CALCULATED" or attrs["data_format"] != "NCHW":
        raise NotImplementedError(f"{attrs['padding_mode']} pools of {attrs['data_format']}")
    top, _, left, _ = attrs["pads"]
    return attrs["ksize"][2:], attrs["strides"][2:], [top, left]


@kernel("MaxPoolV3")
def max_pool(attrs: Attrs, x: Tensor) -> Tensor:
    return F.max_pool2d(x, *_pooling(attrs), ceil_mode=attrs["ceil_mode"])


@kernel("AvgPoolV2")
def avg_pool(attrs: Attrs, x: Tensor) -> Tensor:
    divisor = attrs["divisor_override"] or None
    return F.avg_pool2d(x, *_pooling(attrs), attrs["ceil_mode"], not attrs["exclusive"], divisor)


@kernel("AdaptiveAvgPool2d")
def adaptive_avg_pool(attrs: Attrs, x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, attrs["output_size"])


@kernel("LayerNormV4")
def layer_norm(
    attrs: Attrs, x: Tensor, shape: Tensor, w: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    y, mean, rstd = aten.native_layer_norm(x, numbers(shape), w, bias, attrs["epsilon"])
    wide = torch.promote_types(x.dtype, torch.float32)
    return y, mean.to(wide), rstd.to(wide)


@kernel("LayerNorm", "LayerNormV3")
def layer_norm_by_axis(attrs: Attrs, x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    shape = x.shape[attrs["begin_norm_axis"] :]
    y, mean, rstd = aten.native_layer_norm(x, shape, w, bias, attrs["epsilon"])
    return y, mean, rstd


@kernel("LayerNormGradV3")
def layer_norm_grad(
    attrs: Attrs, dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, w: Tensor
) -> tuple[Tensor, ...]:
    dx, dw, db = aten.native_layer_norm_backward(
        dy, x, w.shape, mean.to(x.dtype), rstd.to(x.dtype), w, w, [True] * 3
    )
    return dx, dw.float(), db.float()


@kernel("RmsNorm")
def rms_norm(attrs: Attrs, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + attrs["epsilon"])
    return (wide * rstd).to(x.dtype) * gamma, rstd


@kernel("GroupNormV2")
def group_norm(attrs: Attrs, x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    n, c = x.shape[:2]
    pixels = x[0, 0].numel()
    y, mean, rstd = aten.native_group_norm(
        x.contiguous(), w, bias, n, c, pixels, attrs["num_groups"], attrs["eps"]
    )
    return y, mean, rstd


@kernel("BNInfer")
def batch_norm(attrs: Attrs, x: Tensor, *weights: Tensor) -> Tensor:
    scale, offset, mean, variance = weights
    return F.batch_norm(x, mean, variance, scale, offset, False, 0.0, attrs["epsilon"])


@kernel("RotaryMul")
def rotary_mul(attrs: Attrs, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


@kernel("SwiGlu")
def swi_glu(attrs: Attrs, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, attrs["dim"])
    return F.silu(gate) * up


@kernel("EmbeddingDenseGrad")
def embedding_grad(attrs: Attrs, grad: Tensor, indices: Tensor) -> Any:
    names = ("num_weights", "padding_idx", "scale_grad_by_freq")
    given: list[Any] = [attrs[name] for name in names]
    return aten.embedding_dense_backward(grad, indices, *given)
