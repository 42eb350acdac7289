# SPDX-License-Identifier: Apache-2.0
"""Conversions of reductions: sums, extremes, indices, sorting, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value, described
from deeplink_vendors.ascend.graph.conversions import register_conversion
from deeplink_vendors.ascend.graph.elementwise import truth
from dicp.conversion import NotTaken

aten = torch.ops.aten


def axes_of(x: Value, dims: int | Sequence[int] | None) -> list[int]:
    """Return dimensions counted from the first; an empty list means all."""
    listed = [dims] if isinstance(dims, int) else list(dims or range(x.dim))
    return [dim % x.dim for dim in listed] if x.dim else []


def _reduced(b: Builder, node: fx.Node, kind: str, x: Value, dims: Any, keep: bool) -> Value:
    dtype = described(node)[0]
    x = b.cast(x, dtype)
    axes = axes_of(x, dims)
    return b.like(node, kind, x, b.ints(axes), keep_dims=keep) if axes else x


@register_conversion(aten.sum.dim_IntList, aten.sum.default)
def total(
    b: Builder, node: fx.Node, x: Value, dims: Any = None, keep: bool = False, **kwargs: Any
) -> Value:
    return _reduced(b, node, "ReduceSum", x, dims, keep)


@register_conversion(aten.mean.dim, aten.mean.default)
def mean(
    b: Builder, node: fx.Node, x: Value, dims: Any = None, keep: bool = False, **kwargs: Any
) -> Value:
    return _reduced(b, node, "ReduceMean", x, dims, keep)


@register_conversion(aten.amax.default)
def amax(b: Builder, node: fx.Node, x: Value, dims: Any = (), keep: bool = False) -> Value:
    return _reduced(b, node, "ReduceMax", _no_bool(x), dims, keep)


@register_conversion(aten.amin.default)
def amin(b: Builder, node: fx.Node, x: Value, dims: Any = (), keep: bool = False) -> Value:
    return _reduced(b, node, "ReduceMin", _no_bool(x), dims, keep)


@register_conversion(aten.prod.dim_int, aten.prod.default)
def prod(
    b: Builder, node: fx.Node, x: Value, dim: Any = None, keep: bool = False, **kwargs: Any
) -> Value:
    return _reduced(b, node, "ReduceProd", x, dim, keep)


def _no_bool(x: Value) -> Value:
    if x.dtype == torch.bool:
        raise NotTaken("GE reduces bools only by any and all")
    return x


@register_conversion(aten.any.dim, aten.any.dims, aten.any.default)
def anything(b: Builder, node: fx.Node, x: Value, dims: Any = None, keep: bool = False) -> Value:
    return _reduced(b, node, "ReduceAny", truth(b, x), dims, keep)


@register_conversion(aten.all.dim, aten.all.default)
def everything(b: Builder, node: fx.Node, x: Value, dims: Any = None, keep: bool = False) -> Value:
    return _reduced(b, node, "ReduceAll", truth(b, x), dims, keep)


@register_conversion(aten.var.correction, aten.var.dim)
def variance(
    b: Builder, node: fx.Node, x: Value, dims: Any = None, *args: Any, **kwargs: Any
) -> Value:
    """Compute the mean of squared distances, times n / (n - correction)."""
    axes = axes_of(x, dims)
    correction = kwargs.get("correction", 1)
    if node.target is aten.var.dim:
        correction = int(args[0]) if args else 1
    keep = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    sizes = [x.shape[axis] for axis in axes]
    if not axes or not all(isinstance(size, int) for size in sizes):
        raise NotTaken("over sizes that are known only when it runs")
    return _spread(b, node, x, axes, 1 if correction is None else correction, keep)


def _spread(
    b: Builder, node: fx.Node, x: Value, axes: list[int], correction: float, keep: bool
) -> Value:
    dtype, wide = x.dtype, torch.float64 if x.dtype == torch.float64 else torch.float32
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    if count <= correction:
        raise NotTaken("over fewer elements than the correction")
    x = b.cast(x, wide)
    kept = [1 if dim in axes else size for dim, size in enumerate(x.shape)]
    centre = b.op("ReduceMean", [x, b.ints(axes)], [(wide, kept)], keep_dims=True)
    away = b.op("Sub", [x, centre], [(wide, x.shape)])
    squares = b.op("Mul", [away, away], [(wide, x.shape)])
    shape = described(node)[1]
    folded = b.op("ReduceMean", [squares, b.ints(axes)], [(wide, shape)], keep_dims=keep)
    factor = b.scalar(count / (count - correction), wide)
    return b.cast(b.op("Mul", [folded, factor], [(wide, shape)]), dtype)


@register_conversion(aten.max.dim, aten.min.dim)
def extreme(b: Builder, node: fx.Node, x: Value, dim: int, keep: bool = False) -> list[Value]:
    """Return the extreme and its index, by two operators."""
    largest = node.target is aten.max.dim
    axes = axes_of(_no_bool(x), dim)
    if not axes:
        raise NotTaken("of a tensor without dimensions")
    values, places = node.meta["val"]
    fold, choose = ("ReduceMax", "ArgMaxV2") if largest else ("ReduceMin", "ArgMin")
    out = (values.dtype, values.shape)
    found = b.op(fold, [x, b.ints(axes)], [out], keep_dims=keep)
    return [found, _chosen(b, choose, x, axes[0], places.shape)]


def _chosen(b: Builder, kind: str, x: Value, axis: int, shape: Sequence[Any]) -> Value:
    at = b.scalar(axis, torch.int64)
    sizes = [size for dim, size in enumerate(x.shape) if dim != axis]
    place = b.op(kind, [x, at], [(torch.int64, sizes)], dtype=torch.int64)
    if len(shape) == len(sizes):
        return place
    return b.op("Unsqueeze", [place], [(torch.int64, shape)], axes=[axis])


@register_conversion(aten.argmax.default, aten.argmin.default)
def choice(
    b: Builder, node: fx.Node, x: Value, dim: int | None = None, keep: bool = False
) -> Value:
    kind = "ArgMaxV2" if node.target is aten.argmax.default else "ArgMin"
    if not _no_bool(x).dim or (dim is None and keep):
        raise NotTaken("of a tensor without dimensions, or of all of them, kept")
    if dim is None:
        x = b.op("Reshape", [x, b.ints([-1])], [(x.dtype, (_count(x),))])
        dim = 0
    return _chosen(b, kind, x, dim % x.dim, described(node)[1])


def _count(x: Value) -> Any:
    count = 1
    for size in x.shape:
        count = count * size if isinstance(size, int) else -1
    return count


@register_conversion(aten.cumsum.default)
def cumsum(b: Builder, node: fx.Node, x: Value, dim: int, **kwargs: Any) -> Value:
    x = b.cast(x, described(node)[0])
    return b.like(node, "Cumsum", x, b.scalar(dim % x.dim, torch.int64)) if x.dim else x


@register_conversion(aten.topk.default)
def topk(
    b: Builder,
    node: fx.Node,
    x: Value,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    in_order: bool = True,
) -> list[Value]:
    values, places = node.meta["val"]
    outs = [(values.dtype, values.shape), (torch.int32, places.shape)]
    number = b.scalar(k, torch.int32)
    if not x.dim:
        raise NotTaken("of a tensor without dimensions")
    found = b.several(
        "TopKV2", [x, number], outs, sorted=in_order, dim=dim % x.dim, largest=largest
    )
    return [found[0], b.cast(found[1], torch.int64)]


@register_conversion(aten.sort.default)
def sort(
    b: Builder, node: fx.Node, x: Value, dim: int = -1, descending: bool = False
) -> list[Value]:
    if not x.dim:
        raise NotTaken("of a tensor without dimensions")
    values, places = node.meta["val"]
    outs = [(values.dtype, values.shape), (torch.int32, places.shape)]
    found = b.several("Sort", [x], outs, axis=dim % x.dim, descending=descending)
    return [found[0], b.cast(found[1], torch.int64)]


@register_conversion(aten._softmax.default)
def softmax(b: Builder, node: fx.Node, x: Value, dim: int, half_to_float: bool = False) -> Value:
    x = b.cast(x, described(node)[0])
    return b.like(node, "SoftmaxV2", x, axes=[dim])


@register_conversion(aten._log_softmax.default)
def log_softmax(
    b: Builder, node: fx.Node, x: Value, dim: int, half_to_float: bool = False
) -> Value:
    return b.like(node, "LogSoftmaxV2", b.cast(x, described(node)[0]), axes=[dim])
