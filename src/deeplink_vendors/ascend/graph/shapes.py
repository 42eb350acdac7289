# SPDX-License-Identifier: Apache-2.0
"""Conversions of ops that move elements: views, slices, joins, gathering, sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value, described
from deeplink_vendors.ascend.graph.conversions import register_conversion
from dicp.conversion import NotTaken

aten = torch.ops.aten
LAST = 2**31 - 1  # beyond every end
NUMBERS = {
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.floordiv: "FloorDiv",
}


def sizes_of(b: Builder, node: fx.Node, given: Sequence[Any]) -> Value:
    """Return a node's shape as a tensor: known sizes as numbers, the others as given."""
    shape = described(node)[1]
    pairs = zip(shape, given, strict=True)
    return b.ints([size if isinstance(size, int) else asked for size, asked in pairs])


@register_conversion(aten.reshape.default, aten.view.default, aten._unsafe_view.default)
def reshape(b: Builder, node: fx.Node, x: Value, size: Sequence[Any]) -> Value:
    return b.like(node, "Reshape", x, sizes_of(b, node, size))


@register_conversion(aten.permute.default)
def permute(b: Builder, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return x
    order = b.ints([dim % x.dim for dim in dims])
    return plainly(b, node, x, lambda y, out: b.op("Transpose", [y, order], [out]))


def plainly(b: Builder, node: fx.Node, x: Value, emit: Any) -> Value:
    """Move bools as uint8: the operators that move elements accept no bool."""
    dtype, shape = described(node)
    if dtype != torch.bool:
        result: Value = emit(x, (dtype, shape))
        return result
    return b.cast(emit(b.cast(x, torch.uint8), (torch.uint8, shape)), torch.bool)


@register_conversion(aten.unsqueeze.default)
def unsqueeze(b: Builder, node: fx.Node, x: Value, dim: int) -> Value:
    return b.like(node, "Unsqueeze", x, axes=[dim % (x.dim + 1)])


@register_conversion(aten.squeeze.dim, aten.squeeze.dims)
def squeeze(b: Builder, node: fx.Node, x: Value, dims: Any) -> Value:
    listed = [dims] if isinstance(dims, int) else list(dims)
    axes = [dim % x.dim for dim in listed if x.dim and x.shape[dim] == 1]
    return b.like(node, "Squeeze", x, axis=axes) if axes else x


@register_conversion(aten.expand.default)
def expand(b: Builder, node: fx.Node, x: Value, size: Sequence[Any], **kwargs: Any) -> Value:
    given = [
        b.size(x, at - len(size)) if isinstance(asked, int) and asked == -1 else asked
        for at, asked in enumerate(size)
    ]
    return b.like(node, "BroadcastTo", x, sizes_of(b, node, given))


@register_conversion(aten.cat.default)
def cat(b: Builder, node: fx.Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    dtype, shape = described(node)
    kept = [b.cast(t, dtype) for t in tensors if t.shape != (0,)]
    if not kept:
        raise NotTaken("there is nothing to join")
    return b.concat(kept, dim % len(shape), (dtype, shape))


@register_conversion(aten.split_with_sizes.default)
def split_with_sizes(
    b: Builder, node: fx.Node, x: Value, sizes: Sequence[Any], dim: int = 0
) -> list[Value]:
    outs = [(part.dtype, part.shape) for part in node.meta["val"]]
    at = b.scalar(dim % x.dim, torch.int32)  # SplitV requires int32 here, and only here
    return b.several("SplitV", [x, b.ints(sizes), at], outs, num_split=len(outs))


@register_conversion(aten.slice.Tensor)
def slices(
    b: Builder,
    node: fx.Node,
    x: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    size, dim = x.shape[dim], dim % x.dim
    first = 0 if start is None else start
    last = LAST if end is None else end
    if isinstance(size, int):
        first, last = (_within(edge, size) for edge in (first, last))
    elif isinstance(last, int):
        last = min(last, LAST)
    return _strided(b, node, x, dim, first, last, step)


def _within(edge: Any, size: int) -> Any:
    if not isinstance(edge, int):
        return edge
    return min(max(edge + size if edge < 0 else edge, 0), size)


def _strided(
    b: Builder, node: fx.Node, x: Value, dim: int, first: Any, last: Any, step: int
) -> Value:
    given = [b.ints([first]), b.ints([last]), b.ints([dim]), b.ints([step])]
    return plainly(b, node, x, lambda y, out: b.op("StridedSliceV2", [y, *given], [out]))


@register_conversion(aten.select.int)
def select(b: Builder, node: fx.Node, x: Value, dim: int, index: Any) -> Value:
    dim = dim % x.dim
    if isinstance(index, int) and index < 0:
        if not isinstance(x.shape[dim], int):
            raise NotTaken("a negative index of a size that changes")
        index += x.shape[dim]
    at, axis = b.scalar(index, torch.int64), b.scalar(dim, torch.int64)
    return plainly(b, node, x, lambda y, out: b.op("GatherV2", [y, at, axis], [out]))


@register_conversion(aten.repeat.default)
def repeat(b: Builder, node: fx.Node, x: Value, repeats: Sequence[Any]) -> Value:
    missing = len(repeats) - x.dim
    if missing:
        shape = (*[1] * missing, *x.shape)
        given = b.ints([*[1] * missing, *(b.size(x, dim) for dim in range(x.dim))])
        x = b.op("Reshape", [x, given], [(x.dtype, shape)])
    if not repeats:
        return x
    times = b.ints(repeats)
    return plainly(b, node, x, lambda y, out: b.op("Tile", [y, times], [out]))


@register_conversion(aten.flip.default)
def flip(b: Builder, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    return b.like(node, "ReverseV2", x, b.ints([dim % x.dim for dim in dims])) if dims else x


@register_conversion(aten.index_select.default)
def index_select(b: Builder, node: fx.Node, x: Value, dim: int, index: Value) -> Value:
    if not x.dim:
        raise NotTaken("of a tensor without dimensions")
    axis = b.scalar(dim % x.dim, torch.int64)
    return plainly(b, node, x, lambda y, out: b.op("GatherV2", [y, index, axis], [out]))


@register_conversion(aten.embedding.default)
def embedding(b: Builder, node: fx.Node, weight: Value, indices: Value, *rest: Any) -> Value:
    return b.like(node, "GatherV2", weight, indices, b.scalar(0, torch.int64))


@register_conversion(aten.gather.default)
def gather(b: Builder, node: fx.Node, x: Value, dim: int, index: Value, **kwargs: Any) -> Value:
    if not x.dim or not index.dim:
        raise NotTaken("of a tensor without dimensions")
    return b.like(node, "GatherElements", x, index, dim=dim % x.dim)


@register_conversion(aten.index.Tensor)
def index(b: Builder, node: fx.Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """Index by one tensor: rows of a dimension. Several tensors, and masks, stay eager."""
    given = [(dim, at) for dim, at in enumerate(indices) if at is not None]
    if len(given) != 1 or given[0][1].dtype == torch.bool:
        raise NotTaken("several indices, or a mask")
    dim, at = given[0]
    axis = b.scalar(dim, torch.int64)
    extra = {"negative_index_support": True}
    return plainly(b, node, x, lambda y, out: b.op("GatherV2", [y, at, axis], [out], **extra))


@register_conversion(aten.scatter.src, aten.scatter_add.default, aten.scatter.value)
def scatter(b: Builder, node: fx.Node, x: Value, dim: int, index: Value, source: Any) -> Value:
    if not x.dim or x.dtype == torch.bool:
        raise NotTaken("of a tensor without dimensions, or of bools")
    adds = node.target is aten.scatter_add.default
    if not isinstance(source, Value):
        sizes = b.ints([b.size(index, at) for at in range(index.dim)])
        source = b.op("Fill", [sizes, b.scalar(source, x.dtype)], [(x.dtype, index.shape)])
    elif list(source.shape) != list(index.shape):
        raise NotTaken("a source that is larger than the index")
    reduction = "add" if adds else "none"
    return b.like(node, "ScatterElements", x, index, source, axis=dim % x.dim, reduction=reduction)


@register_conversion(aten.constant_pad_nd.default)
def constant_pad_nd(
    b: Builder, node: fx.Node, x: Value, pad: Sequence[Any], value: Any = 0
) -> Value:
    if any(not isinstance(edge, int) or edge < 0 for edge in pad):
        raise NotTaken("GE pads by sizes that are known and not negative")
    pairs = [list(pad[at : at + 2]) for at in range(0, len(pad), 2)][::-1]
    edges = [[0, 0]] * (x.dim - len(pairs)) + pairs
    flat = b.ints([edge for pair in edges for edge in pair])

    def emit(y: Value, out: Any) -> Any:
        return b.op("PadV3", [y, flat, b.scalar(value, out[0])], [out], mode="constant")

    return plainly(b, node, x, emit)


@register_conversion(aten.arange.start_step)
def arange(b: Builder, node: fx.Node, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Value:
    dtype = described(node)[0]
    return b.like(node, "Range", *(b.scalar(edge, dtype) for edge in (start, end, step)))


@register_conversion(aten.tril.default)
def tril(b: Builder, node: fx.Node, x: Value, diagonal: int = 0) -> Value:
    return plainly(b, node, x, lambda y, out: b.op("Tril", [y], [out], diagonal=diagonal))


@register_conversion(aten.triu.default)
def triu(b: Builder, node: fx.Node, x: Value, diagonal: int = 0) -> Value:
    return plainly(b, node, x, lambda y, out: b.op("Triu", [y], [out], diagonal=diagonal))


@register_conversion(aten.sym_size.int)
def sym_size(b: Builder, node: fx.Node, x: Value, dim: int) -> Value:
    return b.scalar(b.size(x, dim), torch.int64)


def _number(kind: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Any, y: Any) -> Value:
        given = [b.scalar(value, torch.int64) for value in (x, y)]
        return b.op(kind, given, [(torch.int64, ())])

    return convert


for _target, _kind in NUMBERS.items():
    register_conversion(_target)(_number(_kind))
