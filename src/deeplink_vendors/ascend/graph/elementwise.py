# SPDX-License-Identifier: Apache-2.0
"""Conversions of elementwise ops: arithmetic, comparisons, functions, types."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, Value, described
from deeplink_vendors.ascend.graph.conversions import register_conversion
from dicp.conversion import NotTaken

aten = torch.ops.aten

UNARY = {
    aten.abs.default: "Abs", aten.neg.default: "Neg", aten.exp.default: "Exp",
    aten.log.default: "Log", aten.log1p.default: "Log1p", aten.sqrt.default: "Sqrt",
    aten.rsqrt.default: "Rsqrt", aten.sin.default: "Sin", aten.cos.default: "Cos",
    aten.tan.default: "Tan", aten.asin.default: "Asin", aten.acos.default: "Acos",
    aten.atan.default: "Atan", aten.sinh.default: "Sinh", aten.cosh.default: "Cosh",
    aten.asinh.default: "Asinh", aten.acosh.default: "Acosh", aten.atanh.default: "Atanh",
    aten.tanh.default: "Tanh", aten.sigmoid.default: "Sigmoid", aten.relu.default: "Relu",
    aten.erf.default: "Erf", aten.floor.default: "Floor", aten.ceil.default: "Ceil",
    aten.round.default: "Round", aten.trunc.default: "Trunc", aten.sign.default: "Sign",
    aten.reciprocal.default: "Reciprocal", aten.expm1.default: "Expm1",
}  # fmt: skip
BINARY = {
    aten.add: "Add", aten.sub: "Sub", aten.mul: "Mul", aten.maximum: "Maximum",
    aten.minimum: "Minimum", aten.atan2: "Atan2", aten.remainder: "FloorMod", aten.fmod: "Mod",
}  # fmt: skip
COMPARED = {
    aten.eq: "Equal", aten.ne: "NotEqual", aten.lt: "Less", aten.le: "LessEqual",
    aten.gt: "Greater", aten.ge: "GreaterEqual",
}  # fmt: skip
LOGICAL = {aten.logical_and.default: "LogicalAnd", aten.logical_or.default: "LogicalOr"}
BITWISE = {
    aten.bitwise_and: ("BitwiseAnd", "LogicalAnd"),
    aten.bitwise_or: ("BitwiseOr", "LogicalOr"),
    aten.bitwise_xor: ("BitwiseXor", "NotEqual"),
}
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def overloads(packet: Any) -> list[Any]:
    """Return the overloads that take two tensors, or a tensor and a number."""
    names = [name for name in ("Tensor", "Scalar") if name in packet.overloads()]
    return [getattr(packet, name) for name in names or ("default",)]


def joint(node: fx.Node) -> torch.dtype:
    """Return the type in which torch computes a node's first two arguments."""
    given: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:2]]
    return torch.result_type(*given)


def whole_result(node: fx.Node) -> bool:
    return described(node)[0] in WHOLE


def _unary(kind: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Value) -> Value:
        if kind in ("Floor", "Ceil", "Round", "Trunc") and whole_result(node):
            return x
        return b.like(node, kind, b.cast(x, described(node)[0]))

    return convert


def _binary(kind: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Any, y: Any, alpha: Any = 1) -> Value:
        dtype = described(node)[0]
        if dtype == torch.bool:
            raise NotTaken(f"GE's {kind} takes no bool")
        x, y = b.scalar(x, dtype), b.scalar(y, dtype)
        if alpha != 1:
            y = b.op("Mul", [y, b.scalar(alpha, dtype)], [(dtype, y.shape)])
        return b.like(node, kind, x, y)

    return convert


def _compared(kind: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Any, y: Any) -> Value:
        dtype = joint(node)
        if dtype == torch.bool and kind != "Equal":
            dtype = torch.int32  # only Equal accepts bool
        return b.like(node, kind, b.scalar(x, dtype), b.scalar(y, dtype))

    return convert


def _logical(kind: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Value, y: Value) -> Value:
        return b.like(node, kind, truth(b, x), truth(b, y))

    return convert


def _bitwise(whole: str, of_bools: str) -> Any:
    def convert(b: Builder, node: fx.Node, x: Any, y: Any) -> Value:
        dtype = described(node)[0]
        if dtype != torch.bool:
            return b.like(node, whole, b.scalar(x, dtype), b.scalar(y, dtype))
        work = torch.int32 if of_bools == "NotEqual" else torch.bool
        return b.like(node, of_bools, b.scalar(x, work), b.scalar(y, work))

    return convert


def truth(b: Builder, x: Value) -> Value:
    """Return where x is not zero."""
    if x.dtype == torch.bool:
        return x
    return b.op("NotEqual", [x, b.scalar(0, x.dtype)], [(torch.bool, x.shape)])


for _target, _kind in UNARY.items():
    register_conversion(_target)(_unary(_kind))
for _packet, _kind in BINARY.items():
    register_conversion(overloads(_packet))(_binary(_kind))
for _packet, _kind in COMPARED.items():
    register_conversion(overloads(_packet))(_compared(_kind))
for _target, _kind in LOGICAL.items():
    register_conversion(_target)(_logical(_kind))
for _packet, _kinds in BITWISE.items():
    register_conversion(overloads(_packet))(_bitwise(*_kinds))


@register_conversion(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, node: fx.Node, x: Any, y: Any) -> Value:
    dtype = described(node)[0]
    return b.like(node, "RealDiv", b.scalar(x, dtype), b.scalar(y, dtype))


@register_conversion(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, node: fx.Node, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    dtype = described(node)[0]
    x, y = b.scalar(x, dtype), b.scalar(y, dtype)
    if rounding_mode == "floor":
        return b.like(node, "FloorDiv", x, y)
    if rounding_mode is None:
        return b.like(node, "RealDiv", x, y)
    if dtype in WHOLE:
        raise NotTaken("GE has no division of whole numbers that rounds to zero")
    return b.like(node, "Trunc", b.like(node, "RealDiv", x, y))


@register_conversion(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(b: Builder, node: fx.Node, x: Any, y: Any) -> Value:
    dtype = described(node)[0]
    return b.like(node, "Pow", b.scalar(x, dtype), b.scalar(y, dtype))


@register_conversion(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, node: fx.Node, x: Any, y: Any, alpha: Any = 1) -> Value:
    dtype = described(node)[0]
    x = b.scalar(x, dtype)
    if alpha != 1:
        x = b.op("Mul", [x, b.scalar(alpha, dtype)], [(dtype, x.shape)])
    return b.like(node, "Sub", b.scalar(y, dtype), x)


@register_conversion(aten.logical_not.default, aten.bitwise_not.default)
def negation(b: Builder, node: fx.Node, x: Value) -> Value:
    if described(node)[0] == torch.bool:
        return b.like(node, "LogicalNot", truth(b, x))
    return b.like(node, "Invert", x)


@register_conversion(aten.logical_xor.default)
def logical_xor(b: Builder, node: fx.Node, x: Value, y: Value) -> Value:
    x, y = (b.cast(truth(b, value), torch.int32) for value in (x, y))
    return b.like(node, "NotEqual", x, y)


@register_conversion(aten.isnan.default)
def isnan(b: Builder, node: fx.Node, x: Value) -> Value:
    return b.like(node, "IsNan", x)


@register_conversion(aten.isinf.default)
def isinf(b: Builder, node: fx.Node, x: Value) -> Value:
    return b.like(node, "IsInf", x)


@register_conversion(aten.silu.default)
def silu(b: Builder, node: fx.Node, x: Value) -> Value:
    return b.like(node, "Swish", x, scale=1.0)


@register_conversion(aten.gelu.default)
def gelu(b: Builder, node: fx.Node, x: Value, approximate: str = "none") -> Value:
    return b.like(node, "GeluV2", x, approximate=approximate)


@register_conversion(aten.elu.default)
def elu(
    b: Builder, node: fx.Node, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    return b.like(node, "Elu", x, alpha=alpha, scale=scale, input_scale=input_scale)


@register_conversion(aten.leaky_relu.default)
def leaky_relu(b: Builder, node: fx.Node, x: Value, slope: float = 0.01) -> Value:
    return b.like(node, "LeakyRelu", x, negative_slope=slope)


@register_conversion(aten.hardtanh.default)
def hardtanh(b: Builder, node: fx.Node, x: Value, low: float = -1, high: float = 1) -> Value:
    return _clipped(b, node, x, low, high)


@register_conversion(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, node: fx.Node, x: Value, low: Any = None, high: Any = None) -> Value:
    return _clipped(b, node, x, low, high)


def _clipped(b: Builder, node: fx.Node, x: Value, low: Any, high: Any) -> Value:
    """Clamp by Maximum and Minimum: the upper bound decides where the two cross, as in torch."""
    dtype = described(node)[0]
    x = b.cast(x, dtype)
    if low is not None:
        x = b.like(node, "Maximum", x, b.scalar(low, dtype))
    return x if high is None else b.like(node, "Minimum", x, b.scalar(high, dtype))


@register_conversion(aten.where.self)
def where(b: Builder, node: fx.Node, condition: Value, x: Value, y: Value) -> Value:
    dtype = described(node)[0]
    work = torch.int32 if dtype == torch.bool else dtype  # SelectV2 accepts no bool
    x, y = b.cast(x, work), b.cast(y, work)
    chosen = b.op("SelectV2", [truth(b, condition), x, y], [(work, described(node)[1])])
    return b.cast(chosen, dtype)


@register_conversion(aten._to_copy.default)
def to_copy(b: Builder, node: fx.Node, x: Value, **kwargs: Any) -> Value:
    return converted(b, x, described(node)[0])


@register_conversion(torch.ops.prims.convert_element_type.default)
def convert_element_type(b: Builder, node: fx.Node, x: Value, dtype: torch.dtype) -> Value:
    return converted(b, x, dtype)


def converted(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return truth(b, x) if dtype == torch.bool else b.cast(x, dtype)


@register_conversion(aten.clone.default, aten.alias.default, aten.detach.default)
def same(b: Builder, node: fx.Node, x: Value, **kwargs: Any) -> Value:
    return x


@register_conversion(aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def full(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Value:
    """Broadcast a number; `full` gives the sizes, `full_like` a tensor that has them."""
    dtype, _ = described(node)
    if node.target is aten.scalar_tensor.default:
        return b.scalar(args[0], dtype)
    sizes, number = args[:2]
    if isinstance(sizes, Value):
        sizes = [b.size(sizes, dim) for dim in range(sizes.dim)]
    return b.like(node, "Fill", b.ints(sizes), b.scalar(number, dtype))
