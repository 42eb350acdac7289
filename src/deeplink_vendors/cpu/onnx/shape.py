# SPDX-License-Identifier: Apache-2.0
"""Conversions of ops that create, move, slice and join tensors without arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import (
    computes,
    conversions,
    dims_of,
    fake,
    known,
    moves,
    operand,
    reason,
)
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Size, Value
from deeplink_vendors.cpu.onnx.types import computed_in

aten = torch.ops.aten
LAST, FIRST = 2**63 - 1, -(2**63)


def shaped(e: OnnxEmitter, x: Name, sizes: list[Any]) -> str:
    """Reshape to other sizes with equal elements."""
    return e.op("Reshape", x, e.ints(sizes), allowzero=int(-1 not in sizes))


@moves(
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_copy.default,
    aten.view_copy.default,
)
def reshape(e: OnnxEmitter, node: fx.Node, x: Value, size: list[Any]) -> Name:
    wanted = list(node.meta["val"].shape)
    return shaped(e, x, wanted if known(*wanted) else list(size))


@moves(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def copied(e: OnnxEmitter, node: fx.Node, x: Value, **_: Any) -> Name:
    return x


@moves(aten.permute.default)
def permute(e: OnnxEmitter, node: fx.Node, x: Value, dims: list[int]) -> Name:
    return e.op("Transpose", x, perm=dims_of(x, dims))


@moves(aten.unsqueeze.default)
def unsqueeze(e: OnnxEmitter, node: fx.Node, x: Value, dim: int) -> Name:
    return e.op("Unsqueeze", x, e.array([dim]))


@moves(aten.squeeze.dim, aten.squeeze.dims)
def squeeze(e: OnnxEmitter, node: fx.Node, x: Value, dims: int | list[int]) -> Name:
    if dims == []:
        return x
    ones = [dim for dim in dims_of(x, dims) if known(x.shape[dim]) and x.shape[dim] == 1]
    return e.op("Squeeze", x, e.array(ones)) if ones else x


@computes(aten.expand.default)
def expand(e: OnnxEmitter, node: fx.Node, x: Value, size: list[Any], **_: Any) -> Name:
    return e.op("Expand", x, e.ints([1 if known(s) and s == -1 else s for s in size]))


@computes(aten.repeat.default)
def repeat(e: OnnxEmitter, node: fx.Node, x: Value, repeats: list[Any]) -> Name:
    added = list(range(len(repeats) - x.rank))
    lifted = e.op("Unsqueeze", x, e.array(added)) if added else x
    return e.op("Tile", lifted, e.ints(repeats)) if repeats else lifted


@moves(aten.slice.Tensor)
def cut(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Name:
    ends = e.ints([LAST if end is None else end])
    starts = e.ints([0 if start is None else start])
    return e.op("Slice", x, starts, ends, e.ints([dim]), e.ints([step]))


@moves(aten.select.int)
def select(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, index: Any) -> Name:
    return e.op("Gather", x, operand(e, index, torch.int64), axis=dim)


@moves(aten.split_with_sizes.default)
def split(e: OnnxEmitter, node: fx.Node, x: Value, sizes: list[Any], dim: int = 0) -> list[str]:
    return e.ops("Split", x, e.ints(sizes), results=len(sizes), axis=dim)


@moves(aten.cat.default)
def cat(e: OnnxEmitter, node: fx.Node, tensors: list[Value], dim: int = 0) -> Name:
    val = node.meta["val"]
    # torch allows an empty list to be joined with anything
    parts = [t for t in tensors if not (t.rank == 1 and t.shape == [0] and val.dim() != 1)]
    return e.op("Concat", *(e.cast(t, val.dtype) for t in parts), axis=dim)


@moves(aten.flip.default)
def flip(e: OnnxEmitter, node: fx.Node, x: Value, dims: list[int]) -> Name:
    if not dims or not x.rank:
        return x
    count = len(dims)
    back = e.array([-1] * count)
    return e.op("Slice", x, back, e.array([FIRST] * count), e.array(dims_of(x, dims)), back)


@moves(aten.diagonal.default)
def diagonal(
    e: OnnxEmitter, node: fx.Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Name:
    first, second = dims_of(x, [dim1, dim2])
    others = [dim for dim in range(x.rank) if dim not in (first, second)]
    rows, columns = e.size(x, first), e.size(x, second)
    turned = e.op("Transpose", x, perm=[*others, first, second])
    flat = shaped(e, turned, [*(e.size(x, dim) for dim in others), e.whole("Mul", rows, columns)])
    below, right = max(-offset, 0), max(offset, 0)
    length = e.whole("Min", e.whole("Sub", rows, below), e.whole("Sub", columns, right))
    length = e.whole("Max", length, 0)
    start = e.whole("Add", e.whole("Mul", columns, below), right)
    step = e.whole("Add", columns, 1)
    end = e.whole("Add", start, e.whole("Mul", step, length))
    places = e.op("Range", *(_number(e, size) for size in (start, end, step)))
    return e.op("Gather", flat, places, axis=len(others))


def _number(e: OnnxEmitter, size: Size) -> str:
    return e.array(size) if isinstance(size, int) else size


@moves(aten.as_strided.default)
def as_strided(
    e: OnnxEmitter, node: fx.Node, x: Value, size: list[int], stride: list[int], offset: Any = None
) -> Name:
    places = torch.full([], offset or 0)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(count) * step
        places = places + steps.reshape([-1] + [1] * (len(size) - dim - 1))
    return e.op("Gather", e.op("Reshape", x, e.array([-1])), e.array(places.numpy()), axis=0)


@reason(aten.as_strided.default)
def _why_not_strided(node: fx.Node) -> str | None:
    x = fake(node.args[0])
    sizes = [*x.shape, *node.args[1], *node.args[2]]  # type: ignore[misc]
    if not known(*sizes) or not x.is_contiguous() or math.prod(node.meta["val"].shape) > 1 << 16:
        return "strides apply to a small contiguous tensor of known size only"
    return None


PADS = {
    "reflect": (aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d),
    "edge": (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d),
}


def _padding(e: OnnxEmitter, x: Value, pad: list[Any]) -> str:
    """Convert padding: torch counts pairs from the last dimension on, ONNX all beginnings first."""
    begins, ends = [0] * x.rank, [0] * x.rank
    for number in range(len(pad) // 2):
        begins[-1 - number], ends[-1 - number] = pad[2 * number], pad[2 * number + 1]
    return e.ints([*begins, *ends])


def _padded(mode: str, target: Any) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value, pad: list[Any]) -> Name:
        return e.op("Pad", x, _padding(e, x, pad), mode=mode)


for _mode, _packets in PADS.items():
    for _packet in _packets:
        _padded(_mode, _packet.default)


@computes(aten.constant_pad_nd.default)
def pad(e: OnnxEmitter, node: fx.Node, x: Value, pad: list[Any], value: Any = 0) -> Name:
    return e.op("Pad", x, _padding(e, x, pad), e.number(value, x.dtype))


# New tensors.


@computes(aten.full.default)
def full(e: OnnxEmitter, node: fx.Node, size: list[Any], value: Any, **_: Any) -> Name:
    number = operand(e, value, computed_in(node.meta["val"].dtype))
    return e.op("Expand", number, e.ints(size)) if size else number


@computes(aten.full_like.default, aten.fill.Scalar)
def full_like(e: OnnxEmitter, node: fx.Node, x: Value, value: Any, **_: Any) -> Name:
    return e.op("Expand", operand(e, value, computed_in(node.meta["val"].dtype)), e.shape(x))


@moves(aten.scalar_tensor.default)
def scalar_tensor(e: OnnxEmitter, node: fx.Node, value: Any, **_: Any) -> Name:
    return operand(e, value, node.meta["val"].dtype)


@computes(aten.arange.start_step)
def arange(e: OnnxEmitter, node: fx.Node, start: Any, end: Any, step: Any = 1, **_: Any) -> Name:
    dtype = computed_in(node.meta["val"].dtype)
    return e.op("Range", *(operand(e, x, dtype) for x in (start, end, step)))


@computes(aten.copy.default)
def copy(e: OnnxEmitter, node: fx.Node, x: Value, source: Value, *_: Any) -> Name:
    return e.op("Expand", e.cast(source, x.dtype), e.shape(x))


@moves(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def converted(e: OnnxEmitter, node: fx.Node, x: Value, *_: Any, **__: Any) -> Name:
    return e.cast(x, node.meta["val"].dtype)


# Sizes.


@conversions.register_conversion(aten.sym_size.int)
def sym_size(e: OnnxEmitter, node: fx.Node, x: Value, dim: int) -> Value:
    size = e.size(x, dim)
    return Value(_number(e, size), node.meta["val"], torch.int64)


@conversions.register_conversion(aten.sym_numel.default)
def sym_numel(e: OnnxEmitter, node: fx.Node, x: Value) -> Value:
    return Value(_number(e, e.count(x, range(x.rank))), node.meta["val"], torch.int64)
