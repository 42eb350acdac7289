# SPDX-License-Identifier: Apache-2.0
"""Conversions of reductions, sorting and cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import computes, dims_of
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.types import computed_in

aten = torch.ops.aten
Dims = int | list[int] | None


def reduced(e: OnnxEmitter, kind: str, x: Name, dims: Sequence[int], keep: bool) -> str:
    """Emit a reduction over some dimensions; over none of them, the value itself."""
    if not dims:
        return x.name if isinstance(x, Value) else x
    return e.op(kind, x, e.array(list(dims)), keepdims=int(keep))


def _in_result(e: OnnxEmitter, node: fx.Node, x: Value) -> Value:
    """Convert the operand to the type in which the result is computed."""
    return e.cast(x, computed_in(node.meta["val"].dtype))


def _folded(kind: str, *targets: Any) -> None:
    @computes(*targets)
    def convert(
        e: OnnxEmitter, node: fx.Node, x: Value, dim: Dims = None, keep: bool = False, **_: Any
    ) -> Name:
        return reduced(e, kind, _in_result(e, node, x), dims_of(x, dim), keep)


_folded("ReduceSum", aten.sum.default, aten.sum.dim_IntList)
_folded("ReduceMean", aten.mean.default, aten.mean.dim)
_folded("ReduceProd", aten.prod.default, aten.prod.dim_int)


def _extreme(target: Any, kind: str) -> None:
    @computes(target)
    def convert(
        e: OnnxEmitter, node: fx.Node, x: Value, dim: Dims = None, keep: bool = False
    ) -> Name:
        whole = e.cast(x, torch.int32) if x.dtype == torch.bool else x
        made = reduced(e, kind, whole, dims_of(x, dim), keep)
        return e.op("Greater", made, e.number(0, torch.int32)) if whole is not x else made


_extreme(aten.amax.default, "ReduceMax")
_extreme(aten.amin.default, "ReduceMin")


@computes(aten.any.default, aten.any.dim, aten.any.dims)
def any_(e: OnnxEmitter, node: fx.Node, x: Value, dim: Dims = None, keep: bool = False) -> Name:
    whole = e.cast(e.cast(x, torch.bool), torch.int32)
    made = reduced(e, "ReduceMax", whole, dims_of(x, dim), keep)
    return e.op("Greater", made, e.number(0, torch.int32))


@computes(aten.var.correction)
def variance(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Name:
    return _variance(e, x, dims_of(x, dim), 1 if correction is None else correction, keepdim)


@computes(aten.var_mean.correction)
def variance_and_mean(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> list[Name]:
    dims = dims_of(x, dim)
    spread = _variance(e, x, dims, 1 if correction is None else correction, keepdim)
    return [spread, reduced(e, "ReduceMean", x, dims, keepdim)]


@computes(aten.var.dim)
def variance_of_sample(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: Dims = None,
    unbiased: bool = True,
    keep: bool = False,
) -> Name:
    return _variance(e, x, dims_of(x, dim), int(unbiased), keep)


def _variance(e: OnnxEmitter, x: Value, dims: list[int], correction: float, keep: bool) -> Name:
    apart = e.op("Sub", x, reduced(e, "ReduceMean", x, dims, True))
    squares = reduced(e, "ReduceSum", e.op("Mul", apart, apart), dims, keep)
    count = e.count(x, dims)
    if isinstance(count, int):
        return e.op("Div", squares, e.number(max(count - correction, 0), x.dtype))
    number = e.cast(Value(count, None, torch.int64), x.dtype)
    free = e.op("Sub", number, e.number(correction, x.dtype))
    return e.op("Div", squares, e.op("Max", free, e.number(0, x.dtype)))


# Along one dimension; a tensor of no dimensions is treated as one of a single element.


def _lined(e: OnnxEmitter, x: Value) -> Name:
    return x if x.rank else e.op("Reshape", x, e.array([1]))


def _unlined(e: OnnxEmitter, x: Value, made: str) -> str:
    return made if x.rank else e.op("Reshape", made, e.array([], torch.int64))


def _along(e: OnnxEmitter, kind: str, x: Value, **attributes: Any) -> str:
    return _unlined(e, x, e.op(kind, _lined(e, x), **attributes))


@computes(aten._softmax.default)
def softmax(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, half: bool) -> Name:
    return _along(e, "Softmax", x, axis=dim)


@computes(aten._log_softmax.default)
def log_softmax(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, half: bool) -> Name:
    return _along(e, "LogSoftmax", x, axis=dim)


@computes(aten.cumsum.default)
def cumsum(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, **_: Any) -> Name:
    wide = _in_result(e, node, x)
    return _unlined(e, x, e.op("CumSum", _lined(e, wide), e.array(dim)))


def _arg(target: Any, kind: str) -> None:
    @computes(target)
    def convert(
        e: OnnxEmitter, node: fx.Node, x: Value, dim: int | None = None, keep: bool = False
    ) -> Name:
        return _place(e, kind, x, dim, keep)


def _place(e: OnnxEmitter, kind: str, x: Value, dim: int | None, keep: bool) -> str:
    if dim is not None and x.rank:
        return e.op(kind, x, axis=dim % x.rank, keepdims=int(keep))
    flat = e.op("Reshape", x, e.array([-1]))
    made = e.op(kind, flat, axis=0, keepdims=0)
    return e.op("Reshape", made, e.array([1] * x.rank)) if keep else made


_arg(aten.argmax.default, "ArgMax")
_arg(aten.argmin.default, "ArgMin")


def _with_place(target: Any, kind: str) -> None:
    @computes(target)
    def convert(
        e: OnnxEmitter, node: fx.Node, x: Value, dim: int, keep: bool = False
    ) -> list[Name]:
        found = reduced(e, f"Reduce{kind}", x, dims_of(x, dim), keep)
        return [found, _place(e, f"Arg{kind}", x, dim, keep)]


_with_place(aten.max.dim, "Max")
_with_place(aten.min.dim, "Min")


@computes(aten.topk.default)
def topk(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    ordered: bool = True,
) -> list[Name]:
    return _largest(e, x, e.ints([k]), dim, largest)


@computes(aten.sort.default, aten.sort.stable)
def sort(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: int = -1,
    descending: bool = False,
    **kwargs: Any,
) -> list[Name]:
    size = e.size(x, dim) if x.rank else 1
    return _largest(e, x, e.ints([size]), dim, kwargs.get("descending", descending))


def _largest(e: OnnxEmitter, x: Value, k: str, dim: int, largest: bool) -> list[Name]:
    made = e.ops("TopK", _lined(e, x), k, results=2, axis=dim, largest=int(largest), sorted=1)
    return [_unlined(e, x, name) for name in made]
