# SPDX-License-Identifier: Apache-2.0
"""The meanings of the functions of TopsGraph's builder, by torch on the CPU; not the chip's
kernels.

A kernel receives a call's parameters by name, the operands as tensors; `resultType` is passed as
`out`, the declared type and shape, where a function's result depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {}


def kernel(function: Kernel) -> Kernel:
    """Register a kernel by its own name."""
    KERNELS[function.__name__] = function
    return function


OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos,
    "Erf": torch.erf, "Exp": torch.exp, "Expm1": torch.expm1, "Floor": torch.floor,
    "IsFinite": torch.isfinite, "Log": torch.log, "Log1p": torch.log1p, "Neg": torch.neg,
    "Not": torch.bitwise_not, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
    "Rsqrt": torch.rsqrt, "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin,
    "Sinh": torch.sinh, "Sqrt": torch.sqrt, "Square": torch.square, "Swish": F.silu,
    "Tanh": torch.tanh,
}  # fmt: skip
OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "And": torch.bitwise_and, "Atan2": torch.atan2, "Equal": torch.eq,
    "Greater": torch.gt, "GreaterEqual": torch.ge, "Less": torch.lt, "LessEqual": torch.le,
    "Max": torch.maximum, "Min": torch.minimum, "Mul": torch.mul, "NotEqual": torch.ne,
    "Or": torch.bitwise_or, "Pow": torch.pow, "Rem": torch.fmod, "Sub": torch.sub,
    "Xor": torch.bitwise_xor, "Div": torch.true_divide,
}  # fmt: skip


def _of_one(function: Callable[[Tensor], Tensor]) -> Kernel:
    def run(out: Any, operand: Tensor | None = None, input: Tensor | None = None) -> Tensor:
        given = operand if operand is not None else input
        assert given is not None
        return function(given)

    return run


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    def run(out: Any, lhs: Tensor, rhs: Tensor, broadcast_dimensions: list[int]) -> Tensor:
        if lhs.shape != rhs.shape:
            raise ValueError(f"operands of shapes {list(lhs.shape)} and {list(rhs.shape)}")
        return function(lhs, rhs)

    return run


KERNELS.update({name: _of_one(function) for name, function in OF_ONE.items()})
KERNELS.update({name: _of_two(function) for name, function in OF_TWO.items()})


@kernel
def Convert(out: Any, input: Tensor) -> Tensor:
    return input.to(out[0])


@kernel
def Elu(out: Any, operand: Tensor, alpha: float) -> Tensor:
    return F.elu(operand, alpha)


@kernel
def Gelu(out: Any, operand: Tensor, approximate: bool) -> Tensor:
    return F.gelu(operand, approximate="tanh" if approximate else "none")


@kernel
def LeakyRelu(out: Any, operand: Tensor, alpha: float) -> Tensor:
    return F.leaky_relu(operand, alpha)


@kernel
def Select(out: Any, pred: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor:
    return torch.where(pred, on_true, on_false)


@kernel
def BroadcastInDim(out: Any, operand: Tensor, broadcast_dimensions: list[int]) -> Tensor:
    shape = [1] * len(out[1])
    for size, dim in zip(operand.shape, broadcast_dimensions, strict=True):
        shape[dim] = size
    return operand.reshape(shape).expand(out[1])


@kernel
def Concatenate(out: Any, val: list[Tensor], dimension: int) -> Tensor:
    return torch.cat(val, dimension)


@kernel
def Const(out: Any, value: str) -> Tensor:
    dtype, shape = out
    if not value:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray.fromhex(value), dtype=dtype).reshape(shape)


@kernel
def Gather(
    out: Any,
    operand: Tensor,
    start_indices: Tensor,
    dimension_numbers: list[list[int]],
    slice_sizes: list[int],
    indices_are_sorted: bool,
) -> Tensor:
    """Gather whole rows along one dimension, by index: the only emitted form."""
    offsets, collapsed, mapped, (vector,) = dimension_numbers
    (dim,) = mapped
    whole = [1 if d == dim else size for d, size in enumerate(operand.shape)]
    if collapsed != mapped or vector != start_indices.dim() or slice_sizes != whole:
        raise NotImplementedError("a gathering of something other than whole rows")
    rows = operand.index_select(dim, start_indices.reshape(-1))
    shape = (*operand.shape[:dim], *start_indices.shape, *operand.shape[dim + 1 :])
    inside = range(dim, dim + start_indices.dim())
    if offsets != [d for d in range(len(shape)) if d not in inside]:
        raise NotImplementedError("offsets in another place")
    return rows.reshape(shape)


@kernel
def GetTupleElement(out: Any, input: Any, index: int) -> Tensor:
    result: Tensor = input[index]
    return result


@kernel
def Iota(out: Any, iota_dimension: int) -> Tensor:
    dtype, shape = out
    line = [1] * len(shape)
    line[iota_dimension] = shape[iota_dimension]
    return torch.arange(shape[iota_dimension], dtype=dtype).reshape(line).expand(shape)


@kernel
def Pad(
    out: Any,
    operand: Tensor,
    padding_value: Tensor,
    mode: int,
    edge_padding_low: list[int],
    edge_padding_high: list[int],
    interior_padding: list[int],
) -> Tensor:
    if mode:
        raise NotImplementedError("a padding by something other than a constant")
    for dim, between in enumerate(interior_padding):
        if between:
            shape = list(operand.shape)
            shape[dim] += (shape[dim] - 1) * between
            spread = padding_value.expand(shape).clone()
            spread[(slice(None),) * dim + (slice(None, None, between + 1),)] = operand
            operand = spread
    pairs = list(zip(edge_padding_low, edge_padding_high, strict=True))[::-1]
    return F.pad(operand, [edge for pair in pairs for edge in pair], value=padding_value.item())


@kernel
def Reshape(out: Any, operand: Tensor) -> Tensor:
    return operand.reshape(out[1])


@kernel
def Reverse(out: Any, operand: Tensor, dimensions: list[int]) -> Tensor:
    return operand.flip(dimensions)


@kernel
def Slice(
    out: Any,
    operand: Tensor,
    start_indices: list[int],
    limit_indices: list[int],
    strides: list[int],
) -> Tensor:
    edges = zip(start_indices, limit_indices, strides, strict=True)
    return operand[tuple(slice(*edge) for edge in edges)]


@kernel
def Transpose(out: Any, operand: Tensor, permutation: list[int]) -> Tensor:
    return operand.permute(permutation)


@kernel
def Trilu(out: Any, input: Tensor, upper: bool, k: int) -> Tensor:
    return torch.triu(input, k) if upper else torch.tril(input, k)


@kernel
def ArgMax(out: Any, data: Tensor, axis: int, keepdims: bool, select_last_index: bool) -> Tensor:
    return data.argmax(axis, keepdims)


@kernel
def ArgMin(out: Any, data: Tensor, axis: int, keepdims: bool, select_last_index: bool) -> Tensor:
    return data.argmin(axis, keepdims)


@kernel
def ReduceMax(out: Any, input: Tensor, keepdims: bool, axis: list[int]) -> Tensor:
    return input.amax(axis, keepdims)


@kernel
def ReduceMean(out: Any, input: Tensor, keepdims: bool, axis: list[int]) -> Tensor:
    return input.mean(axis, keepdims)


@kernel
def ReduceMin(out: Any, input: Tensor, keepdims: bool, axis: list[int]) -> Tensor:
    return input.amin(axis, keepdims)


@kernel
def ReduceProd(out: Any, input: Tensor, keepdims: bool, axis: list[int]) -> Tensor:
    for dim in sorted(axis, reverse=True):
        input = input.prod(dim, keepdims, dtype=input.dtype)
    return input


@kernel
def ReduceSum(out: Any, input: Tensor, keepdims: bool, axis: list[int]) -> Tensor:
    return input.sum(axis, keepdims, dtype=input.dtype)


@kernel
def Softmax(
    out: Any, logits: Tensor, axis: int, accurate: bool, logarithmic: bool, epsilon: float
) -> Tensor:
    return F.log_softmax(logits, axis) if logarithmic else F.softmax(logits, axis)


@kernel
def TopK(
    out: Any, input: Tensor, k: Tensor, axis: int, sorted: bool, largest: bool
) -> tuple[Tensor, ...]:
    return tuple(torch.topk(input, int(k), axis, largest, sorted))


@kernel
def DotGeneral(
    out: Any,
    lhs: Tensor,
    rhs: Tensor,
    dot_dimension_numbers: list[list[int]],
    precision_config: list[str],
) -> Tensor:
    return _product(lhs, rhs, None, dot_dimension_numbers)


@kernel
def DotGeneralBias(
    out: Any,
    lhs: Tensor,
    rhs: Tensor,
    bias: list[Tensor],
    dot_dimension_numbers: list[list[int]],
    precision_config: list[str],
) -> Tensor:
    return _product(lhs, rhs, bias[0], dot_dimension_numbers)


def _product(x: Tensor, y: Tensor, bias: Tensor | None, numbers: list[list[int]]) -> Tensor:
    """Multiply with batches first in both, over the last dimension of the left operand."""
    left, right, (over,), (under,) = numbers
    if left != right or left != list(range(len(left))) or over != x.dim() - 1:
        raise NotImplementedError(f"a product over {numbers}")
    if y.dim() == 2:
        return F.linear(x, y if under == 1 else y.mT, bias)
    product = x @ (y if under == y.dim() - 2 else y.mT)
    return product if bias is None else product + bias


def _padding(edges: list[int]) -> list[int]:
    top, bottom, left, right = edges
    if top != bottom or left != right:
        raise NotImplementedError("a padding that is not the same on both sides")
    return [top, left]


@kernel
def Conv2D(
    out: Any,
    input: list[Tensor],
    group: int,
    auto_pad: str,
    layout: str,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    if (auto_pad, layout) != ("NOTSET", "NCHW"):
        raise NotImplementedError(f"a convolution of {layout}, padded by {auto_pad}")
    x, w = input[:2]
    bias = input[2] if len(input) > 2 else None
    return F.conv2d(x, w, bias, stride, _padding(padding), dilation, group)


@kernel
def MaxPool2D(
    out: Any,
    input: Tensor,
    ksize: list[int],
    ceil_mode: bool,
    return_indices: bool,
    auto_pad: str,
    layout: str,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    if (auto_pad, layout, return_indices) != ("NOTSET", "NCHW", False):
        raise NotImplementedError(f"a pool of {layout}, padded by {auto_pad}")
    return F.max_pool2d(input, ksize, stride, _padding(padding), dilation, ceil_mode)


@kernel
def AveragePool(
    out: Any,
    input: Tensor,
    dims: list[int],
    kernel_shape: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    strides: list[int],
    padding: list[int],
    auto_pad: str,
) -> Tensor:
    if auto_pad or dims != [2, 3]:
        raise NotImplementedError(f"a pool over {dims}, padded by {auto_pad}")
    edges = _padding(padding)
    return F.avg_pool2d(input, kernel_shape, strides, edges, ceil_mode, count_include_pad)


@kernel
def BatchNormInference(
    out: Any,
    operand: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    feature_index: int,
) -> Tensor:
    if feature_index != 1:
        raise NotImplementedError(f"features in dimension {feature_index}")
    return F.batch_norm(operand, mean, variance, scale, offset, False, 0.0, epsilon)


@kernel
def LayerNormInference(
    out: Any,
    operand: Tensor,
    gamma_constraint: Tensor,
    beta_constraint: Tensor,
    axis: int,
    epsilon: float,
) -> Tensor:
    shape = operand.shape[axis:]
    return F.layer_norm(operand, shape, gamma_constraint, beta_constraint, epsilon)
