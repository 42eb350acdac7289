# SPDX-License-Identifier: Apache-2.0
"""Conversions of elementwise ops with one operand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from deeplink_vendors.cpu.onnx.conversion import as_result, computes
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.types import computed_in

aten = torch.ops.aten

# For floats, one operator; integers are converted to floats first.
FLOAT = {
    aten.acos.default: "Acos",
    aten.acosh.default: "Acosh",
    aten.asin.default: "Asin",
    aten.asinh.default: "Asinh",
    aten.atan.default: "Atan",
    aten.atanh.default: "Atanh",
    aten.cos.default: "Cos",
    aten.cosh.default: "Cosh",
    aten.erf.default: "Erf",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.reciprocal.default: "Reciprocal",
    aten.sin.default: "Sin",
    aten.sinh.default: "Sinh",
    aten.sqrt.default: "Sqrt",
    aten.tan.default: "Tan",
    aten.tanh.default: "Tanh",
}
SAME = {
    aten.abs.default: "Abs",
    aten.neg.default: "Neg",
    aten.relu.default: "Relu",
}
ROUNDED = {aten.ceil.default: "Ceil", aten.floor.default: "Floor", aten.round.default: "Round"}


def _unary(target: Any, kind: str) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
        return e.op(kind, as_result(e, node, x))


for _target, _kind in (FLOAT | SAME).items():
    _unary(_target, _kind)


def _rounding(target: Any, kind: str) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
        return e.op(kind, x) if x.dtype.is_floating_point else x


for _target, _kind in ROUNDED.items():
    _rounding(_target, _kind)


@computes(aten.trunc.default)
def trunc(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    if not x.dtype.is_floating_point:
        return x
    return truncated(e, x.name, x.dtype)


def truncated(e: OnnxEmitter, x: str, dtype: torch.dtype) -> str:
    """Remove the fractional part."""
    below = e.op("Less", x, e.number(0, dtype))
    return e.op("Where", below, e.op("Ceil", x), e.op("Floor", x))


@computes(aten.rsqrt.default)
def rsqrt(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    return e.op("Reciprocal", e.op("Sqrt", as_result(e, node, x)))


@computes(aten.sign.default)
def sign(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    if x.dtype == torch.bool:
        return x
    made = e.op("Sign", x)
    if not x.dtype.is_floating_point:
        return made
    return e.op("Where", e.op("IsNaN", x), e.number(math.nan, x.dtype), made)


@computes(aten.expm1.default)
def expm1(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    # exp(x) - 1 loses precision near 0; (exp(x) + 1) * tanh(x / 2) is equal and does not
    dtype = computed_in(node.meta["val"].dtype)
    x_ = as_result(e, node, x)
    half = e.op("Tanh", e.op("Mul", x_, e.number(0.5, dtype)))
    return e.op("Mul", half, e.op("Add", e.op("Exp", x_), e.number(1, dtype)))


@computes(aten.log1p.default)
def log1p(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    # log(u) * x / (u - 1) with u = 1 + x after rounding: exact where log(1 + x) is not
    dtype = computed_in(node.meta["val"].dtype)
    x_, one = as_result(e, node, x), e.number(1, dtype)
    u = e.op("Add", x_, one)
    log = e.op("Log", u)
    scaled = e.op("Div", e.op("Mul", log, x_), e.op("Sub", u, one))
    far = e.op("Where", e.op("IsInf", u), log, scaled)
    return e.op("Where", e.op("Equal", u, one), x_, far)


def _logarithm(target: Any, base: float) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
        dtype = computed_in(node.meta["val"].dtype)
        scale = e.number(1 / math.log(base), dtype)
        return e.op("Mul", e.op("Log", as_result(e, node, x)), scale)


_logarithm(aten.log2.default, 2.0)
_logarithm(aten.log10.default, 10.0)


def _test(target: Any, kind: str) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
        if x.dtype.is_floating_point:
            return e.op(kind, x)
        return e.op("Expand", e.number(False, torch.bool), e.shape(x))


_test(aten.isnan.default, "IsNaN")
_test(aten.isinf.default, "IsInf")


@computes(aten.hardtanh.default)
def hardtanh(e: OnnxEmitter, node: fx.Node, x: Value, low: float = -1, high: float = 1) -> Name:
    return e.op("Min", e.op("Max", x, e.number(low, x.dtype)), e.number(high, x.dtype))


@computes(aten.elu.default)
def elu(
    e: OnnxEmitter, node: fx.Node, x: Value, alpha: float = 1, scale: float = 1, inner: float = 1
) -> Name:
    dtype = x.dtype
    half = e.op("Tanh", e.op("Mul", x, e.number(0.5 * inner, dtype)))
    grown = e.op("Add", e.op("Exp", e.op("Mul", x, e.number(inner, dtype))), e.number(1, dtype))
    below = e.op("Mul", e.op("Mul", half, grown), e.number(alpha * scale, dtype))
    above = e.op("Mul", x, e.number(scale, dtype))
    return e.op("Where", e.op("Greater", x, e.number(0, dtype)), above, below)


@computes(aten.leaky_relu.default)
def leaky_relu(e: OnnxEmitter, node: fx.Node, x: Value, slope: float = 0.01) -> Name:
    return e.op("LeakyRelu", x, alpha=float(slope))


@computes(aten.gelu.default)
def gelu(e: OnnxEmitter, node: fx.Node, x: Value, *, approximate: str = "none") -> Name:
    return e.op("Gelu", x, approximate=approximate)


@computes(aten.sigmoid.default)
def sigmoid(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    # the runtime's Sigmoid is off by 1e-4 of its value where that is small
    x_ = as_result(e, node, x)
    return e.op("Reciprocal", one_and_exp(e, x_, computed_in(node.meta["val"].dtype)))


def one_and_exp(e: OnnxEmitter, x: Name, dtype: torch.dtype) -> str:
    """Return 1 + exp(-x)."""
    return e.op("Add", e.op("Exp", e.op("Neg", x)), e.number(1, dtype))


@computes(aten.silu.default)
def silu(e: OnnxEmitter, node: fx.Node, x: Value) -> Name:
    return e.op("Div", x, one_and_exp(e, x, x.dtype))
