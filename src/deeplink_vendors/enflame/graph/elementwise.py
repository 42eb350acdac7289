# SPDX-License-Identifier: Apache-2.0
"""Conversions of elementwise ops: arithmetic, comparisons, functions, types."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.enflame.graph.conversions import register_conversion
from deeplink_vendors.enflame.graph.source import Source, Value, described
from dicp.conversion import NotTaken

aten = torch.ops.aten

UNARY = {
    aten.abs.default: "Abs", aten.neg.default: "Neg", aten.exp.default: "Exp",
    aten.log.default: "Log", aten.log1p.default: "Log1p", aten.sqrt.default: "Sqrt",
    aten.rsqrt.default: "Rsqrt", aten.sin.default: "Sin", aten.cos.default: "Cos",
    aten.asin.default: "Asin", aten.acos.default: "Acos", aten.atan.default: "Atan",
    aten.sinh.default: "Sinh", aten.asinh.default: "Asinh", aten.atanh.default: "Atanh",
    aten.tanh.default: "Tanh", aten.sigmoid.default: "Sigmoid", aten.relu.default: "Relu",
    aten.erf.default: "Erf", aten.floor.default: "Floor", aten.ceil.default: "Ceil",
    aten.sign.default: "Sign", aten.reciprocal.default: "Reciprocal",
    aten.expm1.default: "Expm1", aten.silu.default: "Swish",
}  # fmt: skip
BINARY = {
    aten.add: "Add", aten.sub: "Sub", aten.mul: "Mul", aten.maximum: "Max",
    aten.minimum: "Min", aten.atan2: "Atan2", aten.fmod: "Rem",
}  # fmt: skip
COMPARED = {
    aten.eq: "Equal", aten.ne: "NotEqual", aten.lt: "Less", aten.le: "LessEqual",
    aten.gt: "Greater", aten.ge: "GreaterEqual",
}  # fmt: skip
LOGICAL = {
    aten.logical_and.default: "And", aten.logical_or.default: "Or", aten.logical_xor.default: "Xor",
}  # fmt: skip
BITWISE = {aten.bitwise_and: "And", aten.bitwise_or: "Or", aten.bitwise_xor: "Xor"}


def overloads(packet: Any) -> list[Any]:
    """Return the overloads that take two tensors, or a tensor and a number."""
    names = [name for name in ("Tensor", "Scalar") if name in packet.overloads()]
    return [getattr(packet, name) for name in names or ("default",)]


def pair(b: Source, node: fx.Node, x: Any, y: Any, dtype: torch.dtype) -> list[Value]:
    """Convert both operands to one type and to the shape of the result."""
    return [b.spread(b.scalar(value, dtype), described(node)[1]) for value in (x, y)]


def truth(b: Source, x: Value) -> Value:
    """Return where x is not zero."""
    if x.dtype == torch.bool:
        return x
    zero = b.spread(b.scalar(0, x.dtype), x.shape)
    return b.call("NotEqual", x, zero, [], out=(torch.bool, x.shape))


def _unary(function: str) -> Any:
    def convert(b: Source, node: fx.Node, x: Value) -> Value:
        dtype = described(node)[0]
        if function in ("Floor", "Ceil") and not dtype.is_floating_point:
            return x
        if dtype == torch.bool:
            raise NotTaken(f"{function} of bools")
        return b.like(node, function, b.cast(x, dtype))

    return convert


def _binary(function: str) -> Any:
    def convert(b: Source, node: fx.Node, x: Any, y: Any, alpha: Any = 1) -> Value:
        dtype = described(node)[0]
        if dtype == torch.bool:
            raise NotTaken(f"{function} of bools")
        x, y = pair(b, node, x, y, dtype)
        if alpha != 1:
            by = b.spread(b.scalar(alpha, dtype), y.shape)
            y = b.call("Mul", y, by, [], out=(dtype, y.shape))
        return b.like(node, function, x, y, [])

    return convert


def _compared(function: str) -> Any:
    def convert(b: Source, node: fx.Node, x: Any, y: Any) -> Value:
        given: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:2]]
        dtype = torch.result_type(*given)
        return b.like(node, function, *pair(b, node, x, y, dtype), [])

    return convert


def _logical(function: str) -> Any:
    def convert(b: Source, node: fx.Node, x: Value, y: Value) -> Value:
        return b.like(node, function, *pair(b, node, truth(b, x), truth(b, y), torch.bool), [])

    return convert


def _bitwise(function: str) -> Any:
    def convert(b: Source, node: fx.Node, x: Any, y: Any) -> Value:
        return b.like(node, function, *pair(b, node, x, y, described(node)[0]), [])

    return convert


for _target, _function in UNARY.items():
    register_conversion(_target)(_unary(_function))
for _packet, _function in BINARY.items():
    register_conversion(overloads(_packet))(_binary(_function))
for _packet, _function in COMPARED.items():
    register_conversion(overloads(_packet))(_compared(_function))
for _target, _function in LOGICAL.items():
    register_conversion(_target)(_logical(_function))
for _packet, _function in BITWISE.items():
    register_conversion(overloads(_packet))(_bitwise(_function))


@register_conversion(aten.div.Tensor, aten.div.Scalar)
def div(b: Source, node: fx.Node, x: Any, y: Any) -> Value:
    return b.like(node, "Div", *pair(b, node, x, y, described(node)[0]), [])


@register_conversion(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Source, node: fx.Node, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    dtype = described(node)[0]
    if rounding_mode == "trunc" or not dtype.is_floating_point:
        raise NotTaken("a division that rounds to zero, or of whole numbers")
    if rounding_mode is None:
        return b.like(node, "Div", *pair(b, node, x, y, dtype), [])
    # a quotient that is rounded to a half type may reach the next integer
    wide, shape = torch.promote_types(dtype, torch.float32), described(node)[1]
    given = pair(b, node, b.scalar(x, dtype), b.scalar(y, dtype), wide)
    quotient = b.call("Div", *given, [], out=(wide, shape))
    return b.cast(b.call("Floor", quotient, out=(wide, shape)), dtype)


@register_conversion(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(b: Source, node: fx.Node, x: Any, y: Any) -> Value:
    if y == 2 and isinstance(x, Value):
        return b.like(node, "Square", b.cast(x, described(node)[0]))
    return b.like(node, "Pow", *pair(b, node, x, y, described(node)[0]), [])


@register_conversion(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Source, node: fx.Node, x: Any, y: Any, alpha: Any = 1) -> Value:
    dtype = described(node)[0]
    x, y = pair(b, node, x, y, dtype)
    if alpha != 1:
        by = b.spread(b.scalar(alpha, dtype), x.shape)
        x = b.call("Mul", x, by, [], out=(dtype, x.shape))
    return b.like(node, "Sub", y, x, [])


@register_conversion(aten.logical_not.default)
def logical_not(b: Source, node: fx.Node, x: Value) -> Value:
    return b.like(node, "Not", truth(b, x))


@register_conversion(aten.bitwise_not.default)
def bitwise_not(b: Source, node: fx.Node, x: Value) -> Value:
    return b.like(node, "Not", x)


@register_conversion(aten.isnan.default)
def isnan(b: Source, node: fx.Node, x: Value) -> Value:
    return b.like(node, "NotEqual", x, x, [])


@register_conversion(aten.gelu.default)
def gelu(b: Source, node: fx.Node, x: Value, approximate: str = "none") -> Value:
    return b.like(node, "Gelu", x, approximate == "tanh")


@register_conversion(aten.elu.default)
def elu(
    b: Source, node: fx.Node, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    if scale != 1 or input_scale != 1:
        raise NotTaken("a scaled elu")
    return b.like(node, "Elu", x, float(alpha))


@register_conversion(aten.leaky_relu.default)
def leaky_relu(b: Source, node: fx.Node, x: Value, slope: float = 0.01) -> Value:
    return b.like(node, "LeakyRelu", x, float(slope))


@register_conversion(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def clamp(b: Source, node: fx.Node, x: Value, low: Any = None, high: Any = None) -> Value:
    """Clamp by Max and Min: the upper bound decides where the two cross, as in torch."""
    if node.target is aten.hardtanh.default:
        low, high = (-1 if low is None else low), (1 if high is None else high)
    dtype, shape = described(node)
    x = b.spread(b.cast(x, dtype), shape)
    if low is not None:
        x = b.like(node, "Max", x, b.spread(b.scalar(low, dtype), shape), [])
    if high is not None:
        x = b.like(node, "Min", x, b.spread(b.scalar(high, dtype), shape), [])
    return x


@register_conversion(aten.where.self)
def where(b: Source, node: fx.Node, condition: Value, x: Value, y: Value) -> Value:
    dtype, shape = described(node)
    chosen = [b.spread(b.cast(value, dtype), shape) for value in (x, y)]
    return b.like(node, "Select", b.spread(truth(b, condition), shape), *chosen)


@register_conversion(aten._to_copy.default)
def to_copy(b: Source, node: fx.Node, x: Value, **kwargs: Any) -> Value:
    return converted(b, x, described(node)[0])


@register_conversion(torch.ops.prims.convert_element_type.default)
def convert_element_type(b: Source, node: fx.Node, x: Value, dtype: torch.dtype) -> Value:
    return converted(b, x, dtype)


def converted(b: Source, x: Value, dtype: torch.dtype) -> Value:
    return truth(b, x) if dtype == torch.bool else b.cast(x, dtype)


@register_conversion(aten.clone.default, aten.alias.default, aten.detach.default)
def same(b: Source, node: fx.Node, x: Value, **kwargs: Any) -> Value:
    return x


@register_conversion(aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def full(b: Source, node: fx.Node, *args: Any, **kwargs: Any) -> Value:
    dtype, shape = described(node)
    number = args[0] if node.target is aten.scalar_tensor.default else args[1]
    return b.spread(b.scalar(number, dtype), shape)
