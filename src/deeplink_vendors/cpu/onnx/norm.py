# SPDX-License-Identifier: Apache-2.0
"""Conversions of normalisations."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import computes, reason
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.reduction import reduced
from deeplink_vendors.cpu.onnx.shape import shaped

aten = torch.ops.aten


def used(node: fx.Node, number: int) -> bool:
    """Whether a result of a node is used."""
    return any(
        user.op == "output" or (user.target is operator.getitem and user.args[1] == number)
        for user in node.users
    )


@computes(aten.native_layer_norm.default)
def layer_norm(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    shape: list[Any],
    w: Value | None,
    b: Value | None,
    eps: float,
) -> list[Name | None]:
    wanted = used(node, 1) or used(node, 2)
    made = normalised(e, x, len(shape), w, b, eps, 3 if wanted else 1)
    return [*made, None, None][:3]


def normalised(
    e: OnnxEmitter,
    x: Value,
    dims: int,
    w: Value | None,
    b: Value | None,
    eps: float,
    results: int = 1,
) -> list[Any]:
    """Emit LayerNormalization over the last dimensions; a missing weight is one of ones."""
    sizes = [e.size(x, x.rank - dims + i) for i in range(dims)]
    weight = w or e.op("Expand", e.number(1, x.dtype), e.ints(sizes))
    given = (x, weight) if b is None else (x, weight, b)
    return e.ops(
        "LayerNormalization", *given, results=results, axis=-dims, epsilon=eps, stash_type=1
    )


@computes(aten.native_group_norm.default)
def group_norm(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    w: Value | None,
    b: Value | None,
    batch: Any,
    channels: Any,
    area: Any,
    groups: int,
    eps: float,
) -> list[Name | None]:
    sizes = [e.size(x, dim) for dim in range(x.rank)]
    grouped = shaped(e, x, [sizes[0], groups, -1])
    ones, zeros = (e.array([number] * groups, x.dtype) for number in (1, 0))
    made = e.op("InstanceNormalization", grouped, ones, zeros, epsilon=eps)
    made = shaped(e, made, sizes)
    for kind, factor in (("Mul", w), ("Add", b)):
        if factor is not None:
            made = e.op(kind, made, shaped(e, factor, [sizes[1], *[1] * (x.rank - 2)]))
    if not (used(node, 1) or used(node, 2)):
        return [made, None, None]
    return [made, *_moments(e, grouped, eps, x.dtype)]


def _moments(e: OnnxEmitter, x: str, eps: float, dtype: torch.dtype) -> tuple[str, str]:
    """Return the mean along the last of three dimensions, and the inverse standard deviation."""
    apart = e.op("Sub", x, reduced(e, "ReduceMean", x, [2], True))
    variance = reduced(e, "ReduceMean", e.op("Mul", apart, apart), [2], False)
    spread = e.op("Sqrt", e.op("Add", variance, e.number(eps, dtype)))
    return reduced(e, "ReduceMean", x, [2], False), e.op("Reciprocal", spread)


@computes(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    w: Value | None,
    b: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> list[Name | None]:
    return [batch_normalised(e, x, w, b, mean, var, eps), None, None]


def batch_normalised(
    e: OnnxEmitter, x: Value, w: Any, b: Any, mean: Value, var: Value, eps: float
) -> str:
    """Emit BatchNormalization of inference; a missing weight is one, a missing bias zero."""
    weight = w or e.op("Expand", e.number(1, mean.dtype), e.shape(mean))
    bias = b or e.op("Expand", e.number(0, mean.dtype), e.shape(mean))
    return e.op("BatchNormalization", x, weight, bias, mean, var, epsilon=eps)


@reason(aten._native_batch_norm_legit_no_training.default)
def _why_not_batch_norm(node: fx.Node) -> str | None:
    return "its statistics are used" if used(node, 1) or used(node, 2) else None
