"""Conversions of products, convolutions, pools, norms and the fused ops of `dicp.fused`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

import dicp.fused  # noqa: F401  # the ops of torch.ops.dicp
from deeplink_vendors.enflame.graph.conversions import register_conversion
from deeplink_vendors.enflame.graph.folding import averaged, centred, wider
from deeplink_vendors.enflame.graph.shapes import cut
from deeplink_vendors.enflame.graph.source import Code, Source, Value, described, written
from dicp.conversion import NotTaken

aten, fused = torch.ops.aten, torch.ops.dicp

ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "relu": ("Relu",),
    "gelu": ("Gelu", False),
    "gelu_tanh": ("Gelu", True),
    "silu": ("Swish",),
    "sigmoid": ("Sigmoid",),
    "tanh": ("Tanh",),
}


def activated(b: Source, node: fx.Node, x: Value, activation: str) -> Value:
    if not activation:
        return x
    function, *rest = ACTIVATIONS[activation]
    return b.like(node, function, x, *rest)


def product(
    b: Source, x: Value, y: Value, turned: bool, out: Any, bias: Value | None = None
) -> Value:
    """x @ y over the last two dimensions, or x @ y.T; those before are a batch in both, if in y."""
    batch = list(range(y.dim - 2))
    parts = [batch, batch, [x.dim - 1], [y.dim - 1 if turned else y.dim - 2]]
    numbers = ", ".join(written(part) for part in parts)
    dims = Code(f"builder::DotDimensionNumbers({numbers})")
    if bias is not None:
        return b.call("DotGeneralBias", x, y, [bias], dims, Code("{}"), out=out)
    return b.call("DotGeneral", x, y, dims, Code("{}"), out=out)


def _floating(node: fx.Node) -> None:
    if not described(node)[0].is_floating_point:
        raise NotTaken("a product of whole numbers")


@register_conversion(aten.mm.default, aten.bmm.default)
def mm(b: Source, node: fx.Node, x: Value, y: Value) -> Value:
    _floating(node)
    return product(b, x, y, False, described(node))


@register_conversion(aten.addmm.default)
def addmm(
    b: Source, node: fx.Node, bias: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1
) -> Value:
    _floating(node)
    dtype, shape = described(node)
    if beta == 1 and alpha == 1 and bias.dim == 1:
        return product(b, x, y, False, (dtype, shape), bias)
    parts = [(product(b, x, y, False, (dtype, shape)), alpha), (b.spread(bias, shape), beta)]
    scaled = [
        part if by == 1 else b.like(node, "Mul", part, b.spread(b.scalar(by, dtype), shape), [])
        for part, by in parts
    ]
    return b.like(node, "Add", *scaled, [])


@register_conversion(fused.linear.default)
def linear(
    b: Source, node: fx.Node, x: Value, w: Value, bias: Value | None = None, activation: str = ""
) -> Value:
    if x.dim == 1:
        raise NotTaken("a row without a batch")
    done = product(b, x, w, True, described(node), bias)
    return activated(b, node, done, activation)


@register_conversion(aten.convolution.default)
def convolution(b: Source, node: fx.Node, *args: Any) -> Any:
    x, w, bias, stride, padding, dilation, transposed, _, groups = args
    if transposed:
        raise NotTaken("a transposed convolution")
    return conv(b, node, x, w, bias, stride, padding, dilation, groups)


@register_conversion(fused.conv.default)
def conv(
    b: Source,
    node: fx.Node,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str = "",
) -> Value:
    if x.dim != 4:
        raise NotTaken("a convolution of one or three dimensions")
    (sh, sw), (ph, pw), (dh, dw) = _both(stride, padding, dilation)
    given = [x, w] if bias is None else [x, w, bias]
    rest = ("NOTSET", "NCHW", [sh, sw], [ph, ph, pw, pw], [dh, dw])
    done = b.like(node, "Conv2D", given, groups, *rest)
    return activated(b, node, done, activation)


def _both(*parts: Sequence[int]) -> list[list[int]]:
    return [list(part) * (3 - len(part)) for part in parts]


@register_conversion(aten.max_pool2d_with_indices.default)
def max_pool2d(
    b: Source,
    node: fx.Node,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Value]:
    """The values; who asks for their places stays eager."""
    asked = any(user.args[1] == 1 for user in node.users if user.users)
    if x.dim != 4 or ceil_mode or set(dilation) != {1} or asked:
        raise NotTaken("not of four dimensions, rounded up, dilated, or asked for places")
    size, step, (ph, pw) = _both(kernel, stride or kernel, padding)
    value = node.meta["val"][0]
    rest = (False, False, "NOTSET", "NCHW", step, [ph, ph, pw, pw], [1, 1])
    return [b.call("MaxPool2D", x, size, *rest, out=(value.dtype, value.shape))]


@register_conversion(aten.avg_pool2d.default)
def avg_pool2d(
    b: Source,
    node: fx.Node,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    if x.dim != 4 or ceil_mode or divisor:
        raise NotTaken("not of four dimensions, rounded up, or with a divisor of its own")
    size, step, (ph, pw) = _both(kernel, stride or kernel, padding)
    rest = (size, False, count_include_pad, step, [ph, ph, pw, pw], "")
    return b.like(node, "AveragePool", x, [2, 3], *rest)


@register_conversion(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(b: Source, node: fx.Node, x: Value, size: Sequence[int]) -> Value:
    if list(size) != [1, 1]:
        raise NotTaken("to more than one pixel")
    return b.like(node, "ReduceMean", x, True, [x.dim - 2, x.dim - 1])


@register_conversion(fused.batch_norm.default)
def batch_norm(
    b: Source,
    node: fx.Node,
    x: Value,
    w: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    w = w or b.spread(b.scalar(1, mean.dtype), mean.shape)
    bias = bias or b.spread(b.scalar(0, mean.dtype), mean.shape)
    return b.like(node, "BatchNormInference", x, w, bias, mean, var, float(eps), 1)


@register_conversion(fused.layer_norm.default)
def layer_norm(
    b: Source, node: fx.Node, x: Value, dims: int, w: Value | None, bias: Value | None, eps: float
) -> Value:
    shape = x.shape[x.dim - dims :]
    w = w or b.spread(b.scalar(1, x.dtype), shape)
    bias = bias or b.spread(b.scalar(0, x.dtype), shape)
    return b.like(node, "LayerNormInference", x, w, bias, x.dim - dims, float(eps))


@register_conversion(aten.native_layer_norm.default)
def native_layer_norm(
    b: Source,
    node: fx.Node,
    x: Value,
    shape: Sequence[int],
    w: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value]:
    """With the mean and the inverse deviation that its gradient needs: step by step."""
    axes, wide = list(range(x.dim - len(shape), x.dim)), wider(x.dtype)
    up = b.cast(x, wide)
    away = centred(b, up, axes)
    spread = averaged(b, b.call("Square", away, out=(wide, x.shape)), axes)
    by = b.spread(b.scalar(eps, wide), spread.shape)
    rstd = b.call("Add", spread, by, [], out=(wide, spread.shape))
    rstd = b.call("Rsqrt", rstd, out=(wide, spread.shape))
    done = b.call("Mul", away, b.spread(rstd, x.shape), [], out=(wide, x.shape))
    for function, part in (("Mul", w), ("Add", bias)):
        if part is not None:
            given = b.spread(b.cast(part, wide), x.shape)
            done = b.call(function, done, given, [], out=(wide, x.shape))
    results = (done, averaged(b, up, axes), rstd)
    kept = [value.dtype for value in node.meta["val"]]
    return [b.cast(value, dtype) for value, dtype in zip(results, kept, strict=True)]


@register_conversion(fused.rms_norm.default)
def rms_norm(b: Source, node: fx.Node, x: Value, w: Value, eps: float) -> Value:
    wide = wider(x.dtype)
    up = b.cast(x, wide)
    mean = averaged(b, b.call("Square", up, out=(wide, x.shape)), [x.dim - 1])
    by = b.spread(b.scalar(eps, wide), mean.shape)
    root = b.call(
        "Rsqrt", b.call("Add", mean, by, [], out=(wide, mean.shape)), out=(wide, mean.shape)
    )
    done = b.cast(b.call("Mul", up, b.spread(root, x.shape), [], out=(wide, x.shape)), x.dtype)
    dtype, shape = described(node)
    return b.like(node, "Mul", b.cast(done, dtype), b.spread(b.cast(w, dtype), shape), [])


@register_conversion(fused.rope.default)
def rope(b: Source, node: fx.Node, x: Value, cos: Value, sin: Value) -> Value:
    dtype, shape = described(node)
    half, dim = x.shape[-1] // 2, x.dim - 1
    out = (x.dtype, (*x.shape[:-1], half))
    halves = [cut(b, x, dim, at, at + half, 1, out) for at in (0, half)]
    turned = b.call("Neg", halves[1], out=out)
    other = b.call("Concatenate", [turned, halves[0]], dim, out=(x.dtype, x.shape))
    parts = [
        b.like(
            node, "Mul", b.spread(b.cast(a, dtype), shape), b.spread(b.cast(c, dtype), shape), []
        )
        for a, c in ((x, cos), (other, sin))
    ]
    return b.like(node, "Add", *parts, [])


@register_conversion(fused.swiglu.default)
def swiglu(b: Source, node: fx.Node, gate: Value, up: Value) -> Value:
    return b.like(node, "Mul", b.like(node, "Swish", gate), up, [])


@register_conversion(fused.sdpa.default)
def sdpa(
    b: Source,
    node: fx.Node,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Value:
    if q.dim != 4:
        raise NotTaken("not [batch, heads, sequence, size]")
    k, v = (_for_each_query(b, value, q) for value in (k, v))
    dtype, wide = q.dtype, wider(q.dtype)
    shape = (*q.shape[:-1], k.shape[-2])
    scores = b.cast(product(b, q, k, True, (dtype, shape)), wide)
    by = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = b.call("Mul", scores, b.spread(b.scalar(by, wide), shape), [], out=(wide, shape))
    if causal:
        scores = _hidden(b, scores, _lower(b, shape))
    if mask is not None and mask.dtype == torch.bool:
        scores = _hidden(b, scores, mask)
    elif mask is not None:
        given = b.spread(b.cast(mask, wide), shape)
        scores = b.call("Add", scores, given, [], out=(wide, shape))
    weights = b.call("Softmax", scores, 3, False, False, 0.0, out=(wide, shape))
    return product(b, b.cast(weights, dtype), v, False, described(node))


def _for_each_query(b: Source, x: Value, q: Value) -> Value:
    """Keys or values of fewer heads than q has, each repeated for its queries."""
    if x.shape[1] == q.shape[1]:
        return x
    batch, heads, *rest = x.shape
    times = q.shape[1] // heads
    apart = b.reshape(x, (batch, heads, 1, *rest))
    spread = b.spread(apart, (batch, heads, times, *rest))
    return b.reshape(spread, (batch, heads * times, *rest))


def _hidden(b: Source, scores: Value, seen: Value) -> Value:
    nothing = b.spread(b.scalar(-math.inf, scores.dtype), scores.shape)
    shown = b.spread(seen, scores.shape)
    return b.call("Select", shown, scores, nothing, out=(scores.dtype, scores.shape))


def _lower(b: Source, shape: Sequence[int]) -> Value:
    """Which keys each query sees: where the column is not beyond the row."""
    square = tuple(shape[-2:])
    rows, columns = (
        b.call("Iota", Code("hlir_builder"), dim, out=(torch.int32, square)) for dim in (0, 1)
    )
    return b.call("LessEqual", columns, rows, [], out=(torch.bool, square))
