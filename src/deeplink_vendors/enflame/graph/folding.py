# SPDX-License-Identifier: Apache-2.0
"""Conversions of reductions: sums, extremes, indices, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.enflame.graph.conversions import register_conversion
from deeplink_vendors.enflame.graph.elementwise import truth
from deeplink_vendors.enflame.graph.source import Source, Value, described
from dicp.conversion import NotTaken

aten = torch.ops.aten

FOLDS = {
    aten.sum.dim_IntList: "ReduceSum", aten.sum.default: "ReduceSum",
    aten.mean.dim: "ReduceMean", aten.mean.default: "ReduceMean", aten.amax.default: "ReduceMax",
    aten.amin.default: "ReduceMin", aten.prod.dim_int: "ReduceProd",
    aten.prod.default: "ReduceProd",
}  # fmt: skip


def axes_of(x: Value, dims: int | Sequence[int] | None) -> list[int]:
    """Return dimensions counted from the first; an empty list means all."""
    listed = [dims] if isinstance(dims, int) else list(dims or range(x.dim))
    return [dim % x.dim for dim in listed] if x.dim else []


def _fold(function: str) -> Any:
    def convert(
        b: Source, node: fx.Node, x: Value, dims: Any = None, keep: bool = False, **kwargs: Any
    ) -> Value:
        dtype = described(node)[0]
        if dtype == torch.bool:
            raise NotTaken(f"{function} of bools")
        x = b.cast(x, dtype)
        axes = axes_of(x, dims)
        return b.like(node, function, x, keep, axes) if axes else x

    return convert


for _target, _function in FOLDS.items():
    register_conversion(_target)(_fold(_function))


@register_conversion(aten.any.dim, aten.any.dims, aten.any.default, aten.all.dim, aten.all.default)
def truths(b: Source, node: fx.Node, x: Value, dims: Any = None, keep: bool = False) -> Value:
    """Reduce zeros and ones by their largest or smallest."""
    every = node.target in (aten.all.dim, aten.all.default)
    x = truth(b, x)
    axes = axes_of(x, dims)
    if not axes:
        return x
    ones, shape = b.cast(x, torch.int32), described(node)[1]
    function = "ReduceMin" if every else "ReduceMax"
    return truth(b, b.call(function, ones, keep, axes, out=(torch.int32, shape)))


@register_conversion(aten.var.correction, aten.var.dim)
def variance(
    b: Source, node: fx.Node, x: Value, dims: Any = None, *args: Any, **kwargs: Any
) -> Value:
    correction = kwargs.get("correction", 1)
    if node.target is aten.var.dim:
        correction = int(args[0]) if args else 1
    keep = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    axes, dtype = axes_of(x, dims), x.dtype
    correction = 1 if correction is None else correction
    count = math.prod(x.shape[axis] for axis in axes)
    if not axes or count <= correction:
        raise NotTaken("over fewer elements than the correction")
    away = centred(b, b.cast(x, wider(dtype)), axes)
    squares = b.call("Square", away, out=(away.dtype, away.shape))
    shape = described(node)[1]
    total = b.call("ReduceSum", squares, keep, axes, out=(away.dtype, shape))
    by = b.spread(b.scalar(count - correction, away.dtype), shape)
    return b.cast(b.call("Div", total, by, [], out=(away.dtype, shape)), dtype)


def wider(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def centred(b: Source, x: Value, axes: list[int]) -> Value:
    """Subtract the mean from x."""
    mean = averaged(b, x, axes)
    return b.call("Sub", x, b.spread(mean, x.shape), [], out=(x.dtype, x.shape))


def averaged(b: Source, x: Value, axes: list[int]) -> Value:
    kept = [1 if dim in axes else size for dim, size in enumerate(x.shape)]
    return b.call("ReduceMean", x, True, axes, out=(x.dtype, kept))


@register_conversion(aten.max.dim, aten.min.dim)
def extreme(b: Source, node: fx.Node, x: Value, dim: int, keep: bool = False) -> list[Value]:
    if not x.dim or x.dtype == torch.bool:
        raise NotTaken("of bools, or of a tensor without dimensions")
    values, places = node.meta["val"]
    largest, dim = node.target is aten.max.dim, dim % x.dim
    fold, choose = ("ReduceMax", "ArgMax") if largest else ("ReduceMin", "ArgMin")
    found = b.call(fold, x, keep, [dim], out=(values.dtype, values.shape))
    return [found, b.call(choose, x, dim, keep, False, out=(places.dtype, places.shape))]


@register_conversion(aten.argmax.default, aten.argmin.default)
def choice(b: Source, node: fx.Node, x: Value, dim: int | None = None, keep: bool = False) -> Value:
    function = "ArgMax" if node.target is aten.argmax.default else "ArgMin"
    if not x.dim or x.dtype == torch.bool or (dim is None and keep):
        raise NotTaken("of bools, of no dimensions, or of all of them, kept")
    if dim is None:
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    return b.like(node, function, x, dim % x.dim, keep, False)


@register_conversion(aten.topk.default)
def topk(
    b: Source,
    node: fx.Node,
    x: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    in_order: bool = True,
) -> list[Value]:
    if not x.dim:
        raise NotTaken("of a tensor without dimensions")
    values, places = node.meta["val"]
    outs = [(values.dtype, values.shape), (torch.int64, places.shape)]
    number = b.scalar(k, torch.int32)
    return b.several("TopK", x, number, dim % x.dim, in_order, largest, outs=outs)


@register_conversion(aten._softmax.default, aten._log_softmax.default)
def softmax(b: Source, node: fx.Node, x: Value, dim: int, half_to_float: bool = False) -> Value:
    logarithmic = node.target is aten._log_softmax.default
    x = b.cast(x, described(node)[0])
    if not x.dim:
        raise NotTaken("of a tensor without dimensions")
    return b.like(node, "Softmax", x, dim % x.dim, False, logarithmic, 0.0)
