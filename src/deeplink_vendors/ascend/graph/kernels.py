# SPDX-License-Identifier: Apache-2.0
"""The meanings of GE's operators, by torch on the CPU; not the chip's kernels.

A kernel receives the attributes, with defaults for missing ones, and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink_vendors.ascend.graph.graph import FROM_ATTRIBUTE

Attrs = dict[str, Any]
Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return register


def _plain(function: Callable[..., Any]) -> Kernel:
    return lambda attrs, *inputs: function(*inputs)


PLAIN: dict[str, Callable[..., Any]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Pow": torch.pow,
    "Maximum": torch.maximum, "Minimum": torch.minimum, "Atan2": torch.atan2,
    "FloorDiv": torch.floor_divide, "FloorMod": torch.remainder, "Mod": torch.fmod,
    "Equal": torch.eq, "NotEqual": torch.ne, "Less": torch.lt, "LessEqual": torch.le,
    "Greater": torch.gt, "GreaterEqual": torch.ge, "LogicalAnd": torch.logical_and,
    "LogicalOr": torch.logical_or, "LogicalNot": torch.logical_not,
    "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Invert": torch.bitwise_not, "Abs": torch.abs,
    "Neg": torch.neg, "Exp": torch.exp, "Log": torch.log, "Log1p": torch.log1p,
    "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Sin": torch.sin, "Cos": torch.cos,
    "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan,
    "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh,
    "Atanh": torch.atanh, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Relu": torch.relu,
    "Erf": torch.erf, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round,
    "Trunc": torch.trunc, "Sign": torch.sign, "Reciprocal": torch.reciprocal,
    "Expm1": torch.expm1, "IsNan": torch.isnan, "IsInf": torch.isinf, "SelectV2": torch.where,
    "Select": torch.where, "Identity": lambda x: x,
    "ZerosLike": torch.zeros_like, "MaskedFill": torch.Tensor.masked_fill,
    "ClipByValueV2": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "Addcmul": lambda x, a, b, value: x + value * a * b,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "ReluGrad": lambda dy, x: torch.where(x > 0, dy, torch.zeros_like(dy)),
}  # fmt: skip
KERNELS.update({name: _plain(function) for name, function in PLAIN.items()})


def numbers(tensor: Tensor) -> list[int]:
    return [int(number) for number in tensor.reshape(-1).tolist()]


def number(tensor: Tensor) -> int:
    return numbers(tensor)[0]


@kernel("RealDiv")
def real_div(attrs: Attrs, x: Tensor, y: Tensor) -> Tensor:
    """Divide; integers give integers."""
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@kernel("Cast")
def cast(attrs: Attrs, x: Tensor) -> Tensor:
    return x.to(FROM_ATTRIBUTE[attrs["dst_type"]])


@kernel("GeluV2")
def gelu(attrs: Attrs, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=attrs["approximate"])


@kernel("GeluGradV2")
def gelu_grad(attrs: Attrs, dy: Tensor, x: Tensor) -> Any:
    return torch.ops.aten.gelu_backward(dy, x, approximate=attrs["approximate"])


@kernel("Swish")
def swish(attrs: Attrs, x: Tensor) -> Tensor:
    return F.silu(x) if attrs["scale"] == 1 else x * torch.sigmoid(x * attrs["scale"])


@kernel("SwishGrad")
def swish_grad(attrs: Attrs, dy: Tensor, x: Tensor, y: Tensor) -> Any:
    return torch.ops.aten.silu_backward(dy, x)


@kernel("Elu")
def elu(attrs: Attrs, x: Tensor) -> Any:
    return torch.ops.aten.elu(x, attrs["alpha"], attrs["scale"], attrs["input_scale"])


@kernel("LeakyRelu")
def leaky_relu(attrs: Attrs, x: Tensor) -> Tensor:
    return F.leaky_relu(x, attrs["negative_slope"])


# shapes


@kernel("Reshape")
def reshape(attrs: Attrs, x: Tensor, shape: Tensor) -> Tensor:
    return x.reshape(numbers(shape))


@kernel("Transpose")
def transpose(attrs: Attrs, x: Tensor, perm: Tensor) -> Tensor:
    return x.permute(numbers(perm))


@kernel("Unsqueeze")
def unsqueeze(attrs: Attrs, x: Tensor) -> Tensor:
    for axis in attrs["axes"]:
        x = x.unsqueeze(axis)
    return x


@kernel("Squeeze")
def squeeze(attrs: Attrs, x: Tensor) -> Tensor:
    return x.squeeze(tuple(attrs["axis"])) if attrs["axis"] else x.squeeze()


@kernel("BroadcastTo", "Expand")
def broadcast_to(attrs: Attrs, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(numbers(shape))


@kernel("Fill")
def fill(attrs: Attrs, dims: Tensor, value: Tensor) -> Tensor:
    return value.reshape(()).expand(numbers(dims))


@kernel("Shape")
def shape(attrs: Attrs, x: Tensor) -> Tensor:
    return torch.tensor(x.shape, dtype=FROM_ATTRIBUTE[attrs["dtype"]])


@kernel("Pack")
def pack(attrs: Attrs, *inputs: Tensor) -> Tensor:
    return torch.stack(inputs, attrs["axis"])


@kernel("ConcatV2")
def concat(attrs: Attrs, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs[:-1], number(inputs[-1]))


@kernel("ConcatD")
def concat_d(attrs: Attrs, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, attrs["concat_dim"])


@kernel("SplitV")
def split(attrs: Attrs, x: Tensor, sizes: Tensor, dim: Tensor) -> tuple[Tensor, ...]:
    at, given = number(dim), numbers(sizes)
    rest = x.shape[at] - sum(size for size in given if size >= 0)
    return torch.split(x, [rest if size < 0 else size for size in given], at)


@kernel("SplitD")
def split_d(attrs: Attrs, x: Tensor) -> tuple[Tensor, ...]:
    return torch.chunk(x, attrs["num_split"], attrs["split_dim"])


@kernel("StridedSliceV2")
def strided_slice(
    attrs: Attrs,
    x: Tensor,
    begin: Tensor,
    end: Tensor,
    axes: Tensor | None = None,
    strides: Tensor | None = None,
) -> Tensor:
    dims = range(x.dim()) if axes is None else numbers(axes)
    steps = [1] * len(numbers(begin)) if strides is None else numbers(strides)
    for dim, first, last, step in zip(dims, numbers(begin), numbers(end), steps, strict=False):
        x = torch.ops.aten.slice(x, dim, first, last, step)
    return x


@kernel("StridedSlice")
def strided_slice_of_all(
    attrs: Attrs, x: Tensor, begin: Tensor, end: Tensor, strides: Tensor
) -> Tensor:
    """Slice with masks in which each bit represents a dimension."""
    gone = []
    edges = zip(numbers(begin), numbers(end), numbers(strides), strict=True)
    for dim, (first, last, step) in enumerate(edges):
        bit = 1 << dim
        start = None if attrs["begin_mask"] & bit else first
        stop = None if attrs["end_mask"] & bit else last
        if attrs["shrink_axis_mask"] & bit:
            start, stop = first, first + 1 if first != -1 else None
            gone.append(dim)
        x = torch.ops.aten.slice(x, dim, start, stop, step)
    return x.squeeze(gone) if gone else x


@kernel("Slice")
def slice_by_size(attrs: Attrs, x: Tensor, offsets: Tensor, size: Tensor) -> Tensor:
    for dim, (first, count) in enumerate(zip(numbers(offsets), numbers(size), strict=True)):
        x = x.narrow(dim, first, x.shape[dim] - first if count < 0 else count)
    return x


@kernel("Tile")
def tile(attrs: Attrs, x: Tensor, multiples: Tensor) -> Tensor:
    return x.repeat(numbers(multiples))


@kernel("ReverseV2")
def reverse(attrs: Attrs, x: Tensor, axis: Tensor) -> Tensor:
    return x.flip(numbers(axis))


@kernel("GatherV2")
def gather_rows(attrs: Attrs, x: Tensor, indices: Tensor, axis: Tensor) -> Tensor:
    at, batch = number(axis) % x.dim(), attrs["batch_dims"]
    if batch:
        raise NotImplementedError("GatherV2 with batch_dims")
    if attrs["negative_index_support"]:
        indices = torch.where(indices < 0, indices + x.shape[at], indices)
    rows = x.index_select(at, indices.reshape(-1).long())
    return rows.reshape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))


@kernel("GatherElements")
def gather_elements(attrs: Attrs, x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, attrs["dim"], index.long())


@kernel("ScatterElements")
def scatter_elements(attrs: Attrs, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, index = attrs["axis"], indices.long()
    if attrs["reduction"] == "add":
        return data.scatter_add(axis, index, updates)
    return data.scatter(axis, index, updates)


@kernel("PadV3")
def pad(attrs: Attrs, x: Tensor, paddings: Tensor, value: Tensor | None = None) -> Tensor:
    edges = numbers(paddings)
    pairs = [edges[at : at + 2] for at in range(0, len(edges), 2)][::-1]
    flat = [edge for pair in pairs for edge in pair]
    return F.pad(x, flat, attrs["mode"], None if value is None else value.item())


@kernel("Range")
def arange(attrs: Attrs, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@kernel("Tril")
def tril(attrs: Attrs, x: Tensor) -> Tensor:
    return torch.tril(x, attrs["diagonal"])


@kernel("Triu")
def triu(attrs: Attrs, x: Tensor) -> Tensor:
    return torch.triu(x, attrs["diagonal"])


@kernel("OneHot")
def one_hot(attrs: Attrs, x: Tensor, depth: Tensor, on: Tensor, off: Tensor) -> Tensor:
    hot = F.one_hot(x.long(), number(depth)).bool()
    return torch.where(hot, on, off)
