# SPDX-License-Identifier: Apache-2.0
"""Conversions of dicp's fused ops, in standard ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

import dicp.fused  # noqa: F401  # declares torch.ops.dicp
from deeplink_vendors.cpu.onnx.conversion import computes, fake, known, reason
from deeplink_vendors.cpu.onnx.elementwise import one_and_exp
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.matmul import convolution
from deeplink_vendors.cpu.onnx.norm import batch_normalised, normalised

fused = torch.ops.dicp


def activated(e: OnnxEmitter, x: str, activation: str, dtype: torch.dtype) -> str:
    """Apply an activation of `dicp.fused` to a value."""
    if activation == "":
        return x
    if activation == "silu":
        return e.op("Div", x, one_and_exp(e, x, dtype))
    if activation == "sigmoid":
        return e.op("Reciprocal", one_and_exp(e, x, dtype))
    if activation.startswith("gelu"):
        return e.op("Gelu", x, approximate="tanh" if activation == "gelu_tanh" else "none")
    return e.op(activation.capitalize(), x)


@computes(fused.linear.default)
def linear(
    e: OnnxEmitter, node: fx.Node, x: Value, w: Value, b: Value | None = None, activation: str = ""
) -> Name:
    if x.rank == 2:
        given = (x, w) if b is None else (x, w, b)
        return activated(e, e.op("Gemm", *given, transB=1), activation, x.dtype)
    made = e.op("MatMul", x, e.op("Transpose", w, perm=[1, 0]))
    return activated(e, made if b is None else e.op("Add", made, b), activation, x.dtype)


@computes(fused.rms_norm.default)
def rms_norm(e: OnnxEmitter, node: fx.Node, x: Value, w: Value, eps: float) -> Name:
    return e.op("RMSNormalization", x, w, axis=-1, epsilon=eps)


@computes(fused.layer_norm.default)
def layer_norm(
    e: OnnxEmitter, node: fx.Node, x: Value, dims: int, w: Any, b: Any, eps: float
) -> Name:
    return str(normalised(e, x, dims, w, b, eps)[0])


@computes(fused.rope.default)
def rope(e: OnnxEmitter, node: fx.Node, x: Value, cos: Value, sin: Value) -> Name:
    half = int(x.shape[-1]) // 2
    first, second = e.ops("Split", x, e.array([half, half]), results=2, axis=-1)
    turned = e.op("Concat", second, first, axis=-1)
    # negate the sines, which all layers share
    signs = e.array([-1.0] * half + [1.0] * half, x.dtype)
    return e.op("Add", e.op("Mul", x, cos), e.op("Mul", turned, e.op("Mul", sin, signs)))


@computes(fused.swiglu.default)
def swiglu(e: OnnxEmitter, node: fx.Node, gate: Value, up: Value) -> Name:
    return e.op("Mul", e.op("Div", gate, one_and_exp(e, gate, gate.dtype)), up)


@reason(fused.sdpa.default)
def heads(node: fx.Node) -> str | None:
    q, k = (fake(argument).shape[-3] for argument in node.args[:2])
    if known(q, k) or str(q) == str(k):
        return None
    return "shared heads whose number changes from call to call"


def _grouped(e: OnnxEmitter, q: Value, k: Value) -> list[Any] | None:
    """Return the sizes of q with the queries that share a head adjacent; None if none do."""
    heads, shared = q.shape[-3], k.shape[-3]
    if not (known(heads, shared) and heads != shared):
        return None
    front = [e.size(q, dim) for dim in range(q.rank - 3)]
    rows = e.whole("Mul", e.size(q, q.rank - 2), heads // shared)
    return [*front, shared, rows]


@computes(fused.sdpa.default)
def sdpa(
    e: OnnxEmitter,
    node: fx.Node,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Name:
    factor = scale if scale is not None else 1 / math.sqrt(int(q.shape[-1]))
    turned = e.op("Transpose", k, perm=[*range(k.rank - 2), k.rank - 1, k.rank - 2])
    group = _grouped(e, q, k)
    rows, width = e.size(q, q.rank - 2), e.size(k, k.rank - 2)
    whole = [e.size(q, dim) for dim in range(q.rank - 1)]
    asked: Name = q
    if group is not None:
        asked = e.op("Reshape", q, e.ints([*group, int(q.shape[-1])]))
    scaled = e.op("Mul", asked, e.number(factor, q.dtype))
    causal = causal and width != 1  # a first token sees itself
    scores = e.op("MatMul", scaled, turned)
    apart = group is not None and (causal or mask is not None)
    if apart:
        scores = e.op("Reshape", scores, e.ints([*whole, width]))
    if causal:
        far = e.op("Expand", e.number(-math.inf, q.dtype), e.ints([rows, width]))
        scores = e.op("Add", scores, e.op("Trilu", far, e.array(1), upper=1))
    if mask is not None and mask.dtype == torch.bool:
        nothing = e.number(-math.inf, q.dtype)
        scores = e.op("Where", mask, scores, nothing)
    elif mask is not None:
        scores = e.op("Add", scores, mask)
    shares = e.op("Softmax", scores, axis=-1)
    if group is None:
        return e.op("MatMul", shares, v)
    if apart:
        shares = e.op("Reshape", shares, e.ints([*group, width]))
    made = e.op("MatMul", shares, v)
    return e.op("Reshape", made, e.ints([*whole, e.size(v, v.rank - 1)]))


@computes(fused.batch_norm.default)
def batch_norm(
    e: OnnxEmitter, node: fx.Node, x: Value, w: Any, b: Any, mean: Value, var: Value, eps: float
) -> Name:
    return batch_normalised(e, x, w, b, mean, var, eps)


@computes(fused.conv.default)
def conv(
    e: OnnxEmitter,
    node: fx.Node,
    x: Value,
    w: Value,
    b: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str = "",
) -> Name:
    made = convolution(
        e, node, x, w, b, stride, padding, dilation, False, [0] * len(stride), groups
    )
    return activated(e, str(made), activation, x.dtype)
