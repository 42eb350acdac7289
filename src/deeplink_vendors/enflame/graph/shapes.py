# SPDX-License-Identifier: Apache-2.0
"""Conversions of ops that move elements: views, slices, joins, gathering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.enflame.graph.conversions import register_conversion
from deeplink_vendors.enflame.graph.source import Code, Source, Value, described, written
from dicp.conversion import NotTaken

aten = torch.ops.aten
CONSTANT_PADDING = 0


@register_conversion(
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def reshape(b: Source, node: fx.Node, x: Value, *args: Any) -> Value:
    return b.reshape(x, described(node)[1])


@register_conversion(aten.permute.default)
def permute(b: Source, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    return b.like(node, "Transpose", x, [dim % x.dim for dim in dims]) if dims else x


@register_conversion(aten.expand.default)
def expand(b: Source, node: fx.Node, x: Value, size: Sequence[Any], **kwargs: Any) -> Value:
    return b.spread(x, described(node)[1])


@register_conversion(aten.cat.default)
def cat(b: Source, node: fx.Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    dtype, shape = described(node)
    kept = [b.cast(t, dtype) for t in tensors if t.shape != (0,)]
    if not kept:
        raise NotTaken("there is nothing to join")
    return b.like(node, "Concatenate", kept, dim % len(shape))


@register_conversion(aten.split_with_sizes.default)
def split_with_sizes(
    b: Source, node: fx.Node, x: Value, sizes: Sequence[int], dim: int = 0
) -> list[Value]:
    results, at, dim = [], 0, dim % x.dim
    for part in node.meta["val"]:
        edge = at + part.shape[dim]
        results.append(cut(b, x, dim, at, edge, 1, (part.dtype, part.shape)))
        at = edge
    return results


def cut(b: Source, x: Value, dim: int, first: int, last: int, step: int, out: Any) -> Value:
    starts, limits = [0] * x.dim, list(x.shape)
    strides = [1] * x.dim
    starts[dim], limits[dim], strides[dim] = first, last, step
    return b.call("Slice", x, starts, limits, strides, out=out)


@register_conversion(aten.slice.Tensor)
def slices(
    b: Source,
    node: fx.Node,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim = dim % x.dim
    first, last, _ = slice(start, end, step).indices(x.shape[dim])
    return cut(b, x, dim, first, max(last, first), step, described(node))


@register_conversion(aten.select.int)
def select(b: Source, node: fx.Node, x: Value, dim: int, index: int) -> Value:
    dim = dim % x.dim
    at = index % x.shape[dim]
    kept = [1 if d == dim else size for d, size in enumerate(x.shape)]
    row = cut(b, x, dim, at, at + 1, 1, (x.dtype, kept))
    return b.reshape(row, described(node)[1])


@register_conversion(aten.repeat.default)
def repeat(b: Source, node: fx.Node, x: Value, repeats: Sequence[int]) -> Value:
    x = b.reshape(x, (*[1] * (len(repeats) - x.dim), *x.shape))
    for dim, times in enumerate(repeats):
        shape = list(x.shape)
        shape[dim] *= times
        if times == 0:
            raise NotTaken("repeated no times")
        if times > 1:
            x = b.call("Concatenate", [x] * times, dim, out=(x.dtype, shape))
    return x


@register_conversion(aten.flip.default)
def flip(b: Source, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    return b.like(node, "Reverse", x, [dim % x.dim for dim in dims]) if dims else x


def rows(b: Source, x: Value, dim: int, index: Value, out: Any) -> Value:
    """Gather whole rows along a dimension; the shape of the index replaces the dimension."""
    if index.dtype not in (torch.int32, torch.int64):
        raise NotTaken("an index that is no integer")
    before = list(range(dim))
    after = [dim + index.dim + at for at in range(x.dim - dim - 1)]
    parts = [[*before, *after], [dim], [dim]]
    numbers = ", ".join(written(part) for part in parts)
    dims = Code(f"builder::GatherDimensionNumbers({numbers}, {index.dim})")
    sizes = [1 if d == dim else size for d, size in enumerate(x.shape)]
    return b.call("Gather", x, index, dims, sizes, False, out=out)


@register_conversion(aten.index_select.default)
def index_select(b: Source, node: fx.Node, x: Value, dim: int, index: Value) -> Value:
    if not x.dim or not index.dim:
        raise NotTaken("of a tensor without dimensions")
    return rows(b, x, dim % x.dim, index, described(node))


@register_conversion(aten.embedding.default)
def embedding(b: Source, node: fx.Node, weight: Value, indices: Value, *rest: Any) -> Value:
    return rows(b, weight, 0, indices, described(node))


@register_conversion(aten.index.Tensor)
def index(b: Source, node: fx.Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """Index by one tensor: rows of a dimension; negative indices count from the end."""
    given = [(dim, at) for dim, at in enumerate(indices) if at is not None]
    if len(given) != 1 or given[0][1].dtype == torch.bool:
        raise NotTaken("several indices, or a mask")
    dim, at = given[0]
    zero, size = (b.spread(b.scalar(n, at.dtype), at.shape) for n in (0, x.shape[dim]))
    negative = b.call("Less", at, zero, [], out=(torch.bool, at.shape))
    moved = b.call("Add", at, size, [], out=(at.dtype, at.shape))
    at = b.call("Select", negative, moved, at, out=(at.dtype, at.shape))
    return rows(b, x, dim, at, described(node))


@register_conversion(aten.constant_pad_nd.default)
def constant_pad_nd(
    b: Source, node: fx.Node, x: Value, pad: Sequence[int], value: Any = 0
) -> Value:
    if any(edge < 0 for edge in pad):
        raise NotTaken("negative padding")
    low, high = [0] * x.dim, [0] * x.dim
    for at in range(len(pad) // 2):
        low[-1 - at], high[-1 - at] = pad[2 * at], pad[2 * at + 1]
    by = b.scalar(value, x.dtype)
    return b.like(node, "Pad", x, by, CONSTANT_PADDING, low, high, [0] * x.dim)


@register_conversion(aten.arange.start_step)
def arange(b: Source, node: fx.Node, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Value:
    dtype, shape = described(node)
    steps = b.like(node, "Iota", Code("hlir_builder"), 0)
    for function, by, plain in (("Mul", step, 1), ("Add", start, 0)):
        if by != plain:
            steps = b.like(node, function, steps, b.spread(b.scalar(by, dtype), shape), [])
    return steps


@register_conversion(aten.tril.default, aten.triu.default)
def triangle(b: Source, node: fx.Node, x: Value, diagonal: int = 0) -> Value:
    return b.like(node, "Trilu", x, node.target is aten.triu.default, diagonal)
