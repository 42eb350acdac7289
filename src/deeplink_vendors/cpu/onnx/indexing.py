# SPDX-License-Identifier: Apache-2.0
"""Conversions of ops that select and place elements by index."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import computes, fake, known, moves, operand, reason
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.shape import LAST, shaped

aten = torch.ops.aten


@moves(aten.embedding.default)
def embedding(e: OnnxEmitter, node: fx.Node, table: Value, places: Value, *_: Any) -> Name:
    return e.op("Gather", table, places, axis=0)


@moves(aten.index_select.default)
def index_select(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, places: Value) -> Name:
    line = places if places.rank else shaped(e, places, [1])
    if x.rank:
        return e.op("Gather", x, line, axis=dim)
    return shaped(e, e.op("Gather", shaped(e, x, [1]), line, axis=0), [])


@moves(aten.gather.default)
def gather(e: OnnxEmitter, node: fx.Node, x: Value, dim: int, places: Value, **_: Any) -> Name:
    lined, at = _lined(e, x), _lined(e, places)
    made = e.op("GatherElements", lined, at, axis=dim)
    return made if places.rank else shaped(e, made, [])


def _lined(e: OnnxEmitter, x: Value) -> Name:
    return x if x.rank else shaped(e, x, [1])


def _full_like(e: OnnxEmitter, places: Value, value: Any, dtype: torch.dtype) -> str:
    return e.op("Expand", operand(e, value, dtype), e.shape(places))


def _scattered(
    e: OnnxEmitter, x: Value, dim: int, places: Value, updates: Name, how: str = "none"
) -> str:
    parts = [x if x.rank else shaped(e, x, [1]), _lined(e, places)]
    parts.append(updates if places.rank else shaped(e, updates, [1]))
    made = e.op("ScatterElements", *parts, axis=dim, reduction=how)
    return made if x.rank else shaped(e, made, [])


def _matching(e: OnnxEmitter, updates: Value, places: Value) -> Name:
    """Return the used part of the updates: torch uses as many as there are indices."""
    if not places.rank or updates.shape == places.shape:
        return updates
    dims = list(range(places.rank))
    zeros = e.array([0] * places.rank)
    return e.op("Slice", updates, zeros, e.shape(places), e.array(dims))


@computes(aten.scatter.src)
def scatter(
    e: OnnxEmitter, node: fx.Node, x: Value, dim: int, places: Value, source: Value
) -> Name:
    return _scattered(e, x, dim, places, _matching(e, source, places))


@computes(aten.scatter.value)
def scatter_value(
    e: OnnxEmitter, node: fx.Node, x: Value, dim: int, places: Value, value: Any
) -> Name:
    return _scattered(e, x, dim, places, _full_like(e, places, value, x.dtype))


@computes(aten.scatter_add.default)
def scatter_add(
    e: OnnxEmitter, node: fx.Node, x: Value, dim: int, places: Value, source: Value
) -> Name:
    return _scattered(e, x, dim, places, _matching(e, source, places), "add")


REDUCED = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _neutral(how: str, dtype: torch.dtype) -> Any:
    if how in ("sum", "mean"):
        return 0
    if how == "prod":
        return 1
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    far = math.inf if dtype.is_floating_point else limits.max
    return -far if how == "amax" else far


@computes(aten.scatter_reduce.two)
def scatter_reduce(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    dim: int,
    places: Value,
    source: Value,
    how: str,
    *,
    include_self: bool = True,
) -> Name:
    updates = _matching(e, source, places)
    base = x.name
    if not include_self:
        base = _scattered(e, x, dim, places, _full_like(e, places, _neutral(how, x.dtype), x.dtype))
    start = Value(base, x.val, x.dtype)
    made = _scattered(e, start, dim, places, updates, REDUCED[how])
    if how != "mean":
        return made
    one = _full_like(e, places, 1, x.dtype)
    ones = Value(e.op("Expand", e.number(1, x.dtype), e.shape(x)), x.val, x.dtype)
    if not include_self:
        zeros = _full_like(e, places, 0, x.dtype)
        ones = Value(_scattered(e, ones, dim, places, zeros), x.val, x.dtype)
    return e.op("Div", made, _scattered(e, ones, dim, places, one, "add"))


@reason(aten.scatter_reduce.two)
def _why_not_reduced(node: fx.Node) -> str | None:
    if node.args[4] == "mean" and not fake(node.args[0]).dtype.is_floating_point:
        return "the mean of integers, which only torch rounds in this way"
    return None


@computes(aten.masked_scatter.default)
def masked_scatter(e: OnnxEmitter, node: fx.Node, x: Value, mask: Value, source: Value) -> Name:
    shape = _joint(e, e.shape(x), e.shape(mask))
    spread = e.op("Expand", mask, shape)
    line = e.cast(Value(e.op("Reshape", spread, e.array([-1])), None, torch.bool), torch.int64)
    places = e.op("Sub", e.op("CumSum", line, e.array(0)), e.array(1))
    flat = e.op("Reshape", source, e.array([-1]))
    taken = e.op("Gather", flat, e.op("Max", places, e.array(0)), axis=0)
    return e.op("Where", spread, e.op("Reshape", taken, shape), x)


@moves(aten.nonzero.default)
def nonzero(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    return e.op("Transpose", e.op("NonZero", e.wide(x)), perm=[1, 0])


# Several indices at once: x[:, i, j].


def _spread(e: OnnxEmitter, indices: list[Any]) -> tuple[list[int], str, int]:
    """Return the indexed dimensions, their indices in the form of GatherND,
    and the number of dimensions of these.
    """
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = [e.cast(indices[dim], torch.int64) for dim in dims]
    rank = max(index.rank for index in given)
    names: list[str] = [index.name for index in given]
    if any(index.shape != given[0].shape for index in given):
        shape = e.shape(given[0])
        for index in given[1:]:
            shape = _joint(e, shape, e.shape(index))
        names = [e.op("Expand", name, shape) for name in names]
    parts = [e.op("Unsqueeze", name, e.array([-1])) for name in names]
    return dims, e.op("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0], rank


def _joint(e: OnnxEmitter, a: str, b: str) -> str:
    """Return the broadcast shape of two shapes, as the shape of a sum of ones."""
    one = e.array(1)
    return e.op("Shape", e.op("Add", e.op("Expand", one, a), e.op("Expand", one, b)))


@moves(aten.index.Tensor)
def index(e: OnnxEmitter, node: fx.Node, x: Value, indices: list[Any]) -> Name:
    used = [dim for dim, found in enumerate(indices) if found is not None]
    if len(used) == 1:
        return e.op("Gather", x, indices[used[0]], axis=used[0])
    dims, places, rank = _spread(e, indices)
    others = [dim for dim in range(x.rank) if dim not in dims]
    front = e.op("Transpose", x, perm=[*dims, *others]) if dims != others[: len(dims)] else x
    made = e.op("GatherND", front, places)
    if dims != list(range(dims[0], dims[-1] + 1)) or dims[0] == 0:
        return made  # torch, too, puts them first when they are not adjacent
    before = list(range(rank, rank + dims[0]))
    after = list(range(rank + dims[0], rank + len(others)))
    return e.op("Transpose", made, perm=[*before, *range(rank), *after])


@computes(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    indices: list[Any],
    values: Value,
    accumulate: bool = False,
) -> Name:
    if _is_mask(indices[0]):
        mask = indices[0]
        lifted = shaped(
            e, mask, [e.size(mask, d) for d in range(mask.rank)] + [1] * (x.rank - mask.rank)
        )
        put = e.op("Add", x, values) if accumulate else values
        return e.op("Where", lifted, put, x)
    dims, places, rank = _spread(e, indices)
    others = [dim for dim in range(x.rank) if dim not in dims]
    order = [*dims, *others]
    together = dims == list(range(dims[0], dims[-1] + 1))
    front = e.op("Transpose", x, perm=order)
    tail = e.op("Slice", e.op("Shape", front), e.array([len(dims)]), e.array([LAST]), e.array([0]))
    lead = e.op("Slice", e.op("Shape", places), e.array([0]), e.array([-1]), e.array([0]))
    updates = _updates(e, values, dims[0] if together else 0, rank, lead, tail, len(others))
    how = "add" if accumulate else "none"
    made = e.op("ScatterND", front, places, updates, reduction=how)
    return e.op("Transpose", made, perm=[order.index(dim) for dim in range(x.rank)])


def _updates(
    e: OnnxEmitter, values: Value, at: int, rank: int, lead: str, tail: str, others: int
) -> str:
    """Broadcast values to the shape of x[indices], with its indexed dimensions first."""
    if at == 0:
        return e.op("Expand", values, e.op("Concat", lead, tail, axis=0))
    before = e.op("Slice", tail, e.array([0]), e.array([at]), e.array([0]))
    after = e.op("Slice", tail, e.array([at]), e.array([LAST]), e.array([0]))
    spread = e.op("Expand", values, e.op("Concat", before, lead, after, axis=0))
    middle, last = list(range(at, at + rank)), list(range(at + rank, rank + others))
    return e.op("Transpose", spread, perm=[*middle, *range(at), *last])


def _is_mask(index: Any) -> bool:
    return isinstance(index, Value) and index.dtype in (torch.bool, torch.uint8)


@reason(aten.index.Tensor, aten.index_put.default, aten._unsafe_index_put.default)
def _why_not_indexed(node: fx.Node) -> str | None:
    indices = node.args[1]
    assert isinstance(indices, list | tuple)
    masks = [i for i in indices if i is not None and fake(i).dtype in (torch.bool, torch.uint8)]
    if not [i for i in indices if i is not None]:
        return "no dimension is indexed"
    if not masks:
        return None
    if node.target is aten.index.Tensor:
        return "the number of elements that a mask selects is unknown"
    values = fake(node.args[2])
    if len(indices) == 1 and known(*values.shape) and math.prod(values.shape) == 1:
        return None
    return "a mask with more than one value"


@computes(aten.select_scatter.default)
def select_scatter(
    e: OnnxEmitter, node: fx.Node, x: Value, source: Value, dim: int, index: Any
) -> Name:
    lifted = e.op("Unsqueeze", e.cast(source, x.dtype), e.array([dim % x.rank]))
    places = e.op("Expand", operand(e, index, torch.int64), e.op("Shape", lifted))
    return e.op("ScatterElements", x, places, lifted, axis=dim)


@computes(aten.slice_scatter.default)
def slice_scatter(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Name:
    dim = dim % x.rank
    every = e.op("Range", e.array(0), operand(e, _size(e, x, dim), torch.int64), e.array(1))
    starts, ends = e.ints([start or 0]), e.ints([LAST if end is None else end])
    picked = e.op("Slice", every, starts, ends, e.array([0]), e.ints([step]))
    column = shaped(e, picked, [-1] + [1] * (x.rank - dim - 1))
    updates = e.cast(source, x.dtype)
    places = e.op("Expand", column, e.shape(updates))
    return e.op("ScatterElements", x, places, updates, axis=dim)


def _size(e: OnnxEmitter, x: Value, dim: int) -> Any:
    size = e.size(x, dim)
    return size if isinstance(size, int) else Value(size, None, torch.int64)
