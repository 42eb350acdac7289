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
    """An activation of `dicp.fused` on a value."""
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
    # the sign goes to the sines, which all layers share
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
    return "heads that are shared, in a number that changes from call to call"


def _spread(e: OnnxEmitter, x: Value, q: Value) -> Value:
    """Heads that several of q share, once for each of them."""
    heads, shared = q.shape[-3], x.shape[-3]
    if not (known(heads, shared) and heads != shared):
        return x
    front = [e.size(x, dim) for dim in range(x.rank - 3)]
    back = [e.size(x, x.rank - 2), e.size(x, x.rank - 1)]
    wide = e.op("Unsqueeze", x, e.array([x.rank - 2]))
    wide = e.op("Expand", wide, e.ints([*front, shared, heads // shared, *back]))
    return Value(e.op("Reshape", wide, e.ints([*front, heads, *back])), x.val, x.dtype)


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
    k, v = _spread(e, k, q), _spread(e, v, q)
    turned = e.op("Transpose", k, perm=[*range(k.rank - 2), k.rank - 1, k.rank - 2])
    scores = e.op("MatMul", e.op("Mul", q, e.number(factor, q.dtype)), turned)
    if causal:
        sizes = e.ints([e.size(q, q.rank - 2), e.size(k, k.rank - 2)])
        far = e.op("Expand", e.number(-math.inf, q.dtype), sizes)
        scores = e.op("Add", scores, e.op("Trilu", far, e.array(1), upper=1))
    if mask is not None and mask.dtype == torch.bool:
        nothing = e.number(-math.inf, q.dtype)
        scores = e.op("Where", mask, scores, nothing)
    elif mask is not None:
        scores = e.op("Add", scores, mask)
    return e.op("MatMul", e.op("Softmax", scores, axis=-1), v)


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
