# SPDX-License-Identifier: Apache-2.0
"""Conversions of elementwise ops with several operands, and of sizes."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import (
    as_result,
    common_type,
    computes,
    conversions,
    operand,
)
from deeplink_vendors.cpu.onnx.elementwise import truncated
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.types import computed_in

aten = torch.ops.aten

COMPARED = {
    "eq": "Equal",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "lt": "Less",
}
ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul"}
BITWISE = {"and": "And", "or": "Or", "xor": "Xor"}
# Arithmetic of sizes, which are integers and not negative.
SIZES = {
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.mod: "Mod",
    torch.sym_max: "Max",
    torch.sym_min: "Min",
}


def _arithmetic(word: str, kind: str) -> None:
    packet = getattr(aten, word)

    @computes(packet.Tensor, packet.Scalar)
    def convert(e: OnnxEmitter, node: fx.Node, x: Any, y: Any, alpha: float = 1, **_: Any) -> Name:
        dtype = computed_in(common_type(x, y))
        truth = dtype == torch.bool
        dtype = torch.int32 if truth else dtype
        first, second = operand(e, x, dtype), operand(e, y, dtype)
        if alpha != 1:
            second = e.op("Mul", second, e.number(alpha, dtype))
        made = e.op(kind, first, second)
        return e.op("Greater", made, e.number(0, dtype)) if truth else made


for _word, _kind in ARITHMETIC.items():
    _arithmetic(_word, _kind)


def _larger(target: Any, kind: str) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
        dtype = computed_in(common_type(x, y))
        if dtype == torch.bool:
            word = "Or" if kind == "Max" else "And"
            return e.op(word, operand(e, x, dtype), operand(e, y, dtype))
        return _extreme(e, kind, operand(e, x, dtype), operand(e, y, dtype), dtype)


def _extreme(e: OnnxEmitter, kind: str, x: str, y: str, dtype: torch.dtype) -> str:
    """Return the larger or smaller operand; NaN stays NaN."""
    made = e.op(kind, x, y)
    if not dtype.is_floating_point:
        return made
    bad = e.op("IsNaN", e.op("Add", x, y))  # inf - inf is NaN as well, and is checked again
    nan = e.op("Or", e.op("IsNaN", x), e.op("IsNaN", y))
    return e.op("Where", e.op("And", bad, nan), e.number(math.nan, dtype), made)


_larger(aten.maximum.default, "Max")
_larger(aten.minimum.default, "Min")


@computes(aten.div.Tensor, aten.div.Scalar)
def divide(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
    return e.op("Div", as_result(e, node, x), as_result(e, node, y))


@computes(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_rounded(
    e: OnnxEmitter, node: fx.Node, x: Any, y: Any, rounding_mode: str | None = None
) -> Name:
    dtype = computed_in(node.meta["val"].dtype)
    first, second = operand(e, x, dtype), operand(e, y, dtype)
    if rounding_mode is None:
        return e.op("Div", first, second)
    if not dtype.is_floating_point:
        if rounding_mode == "trunc":
            return e.op("Div", first, second)
        return e.op("Div", e.op("Sub", first, e.op("Mod", first, second)), second)
    if rounding_mode == "trunc":
        return truncated(e, e.op("Div", first, second), dtype)
    return e.op("Floor", e.op("Div", first, second))


@computes(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
    return e.op("Mod", as_result(e, node, x), as_result(e, node, y), fmod=1)


@computes(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
    dtype = computed_in(node.meta["val"].dtype)
    first, second = operand(e, x, dtype), operand(e, y, dtype)
    if not dtype.is_floating_point:
        return e.op("Mod", first, second)
    zero, rest = e.number(0, dtype), e.op("Mod", first, second, fmod=1)
    # fmod has the sign of the first operand, the remainder that of the second
    apart = e.op("Xor", e.op("Less", rest, zero), e.op("Less", second, zero))
    apart = e.op("And", apart, e.op("Not", e.op("Equal", rest, zero)))
    return e.op("Where", apart, e.op("Add", rest, second), rest)


@computes(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor)
def power(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
    first = as_result(e, node, x)
    if y == 2:
        return e.op("Mul", first, first)
    return e.op("Pow", first, as_result(e, node, y))


@computes(aten.atan2.default)
def atan2(e: OnnxEmitter, node: fx.Node, y: Any, x: Any) -> Name:
    dtype = computed_in(node.meta["val"].dtype)
    y_, x_ = operand(e, y, dtype), operand(e, x, dtype)
    zero, pi = e.number(0, dtype), e.number(math.pi, dtype)
    angle = e.op("Atan", e.op("Div", y_, x_))
    turned = e.op("Where", e.op("Less", y_, zero), e.op("Sub", angle, pi), e.op("Add", angle, pi))
    made = e.op("Where", e.op("Less", x_, zero), turned, angle)
    upright = e.op("Mul", e.op("Sign", y_), e.number(math.pi / 2, dtype))
    return e.op("Where", e.op("Equal", x_, zero), upright, made)


def _comparison(word: str, kind: str) -> None:
    packet = getattr(aten, word)

    @computes(packet.Tensor, packet.Scalar)
    def convert(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
        return _compare(e, kind, x, y)


def _compare(e: OnnxEmitter, kind: str, x: Any, y: Any) -> str:
    dtype = computed_in(common_type(x, y))
    dtype = torch.int32 if dtype == torch.bool else dtype
    return e.op(kind, operand(e, x, dtype), operand(e, y, dtype))


for _word, _kind in COMPARED.items():
    _comparison(_word, _kind)


@computes(aten.ne.Tensor, aten.ne.Scalar)
def unequal(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
    return e.op("Not", _compare(e, "Equal", x, y))


def _logical(word: str, kind: str) -> None:
    @computes(getattr(aten, f"logical_{word}").default)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value, y: Value) -> Name:
        return e.op(kind, e.cast(x, torch.bool), e.cast(y, torch.bool))

    packet = getattr(aten, f"bitwise_{word}")

    @computes(packet.Tensor, packet.Scalar)
    def bits(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Name:
        dtype = computed_in(common_type(x, y))
        name = kind if dtype == torch.bool else f"Bitwise{kind}"
        return e.op(name, operand(e, x, dtype), operand(e, y, dtype))


for _word, _kind in BITWISE.items():
    _logical(_word, _kind)


@computes(aten.logical_not.default)
def logical_not(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    return e.op("Not", e.cast(x, torch.bool))


@computes(aten.bitwise_not.default)
def bitwise_not(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    return e.op("Not" if x.dtype == torch.bool else "BitwiseNot", x)


@computes(aten.where.self)
def where(e: OnnxEmitter, node: fx.Node, condition: Value, x: Any, y: Any) -> Name:
    if node.meta["val"].dtype == torch.bool:  # there is no kernel for bools
        c, x_, y_ = (e.cast(v, torch.bool) for v in (condition, x, y))
        return e.op("Or", e.op("And", c, x_), e.op("And", e.op("Not", c), y_))
    chosen = e.cast(condition, torch.bool)
    return e.op("Where", chosen, as_result(e, node, x), as_result(e, node, y))


@computes(aten.clamp.default, aten.clamp.Tensor)
def clamp(e: OnnxEmitter, node: fx.Node, x: Value, low: Any = None, high: Any = None) -> Name:
    dtype = computed_in(node.meta["val"].dtype)
    made = operand(e, x, dtype)
    for kind, bound in (("Max", low), ("Min", high)):
        if isinstance(bound, Value) and isinstance(bound.val, torch.Tensor):
            made = _extreme(e, kind, made, operand(e, bound, dtype), dtype)
        elif bound is not None:
            made = e.op(kind, made, operand(e, bound, dtype))
    if not dtype.is_floating_point or isinstance(low, Value) or isinstance(high, Value):
        return made
    return e.op("Where", e.op("IsNaN", x), e.number(math.nan, dtype), made)


# Sizes.


def _of_sizes(target: Any, kind: str) -> None:
    @conversions.register_conversion(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Value:
        name = e.op(kind, operand(e, x, torch.int64), operand(e, y, torch.int64))
        return Value(name, node.meta["val"], torch.int64)


for _function, _kind in SIZES.items():
    _of_sizes(_function, _kind)


@conversions.register_conversion(operator.floordiv)
def floor_divide(e: OnnxEmitter, node: fx.Node, x: Any, y: Any) -> Value:
    name = e.op("Div", operand(e, x, torch.int64), operand(e, y, torch.int64))
    return Value(name, node.meta["val"], torch.int64)
