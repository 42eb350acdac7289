# SPDX-License-Identifier: Apache-2.0
"""Conversions of products, convolutions, pools, norms and the fused ops of `dicp.fused`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

import dicp.fused  # noqa: F401  # the ops of torch.ops.dicp
from deeplink_vendors.enflame.graph.conversions import register_conversion
from deeplink_vendors.enflame.graph.folding import averaged, centred, wider
from deeplink_vendors.enflame.graph.shapes import CONSTANT_PADDING, cut
from deeplink_vendors.enflame.graph.source import Code, Source, Value, described, written
from dicp.conversion import NotTaken, averages, check_max_pool, pairs

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
    """Compute x @ y over the last two dimensions, or x @ y.T;
    leading ones are a batch in both, if in y.
    """
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
    (sh, sw), (ph, pw), (dh, dw) = pairs(stride, padding, dilation)
    given = [x, w] if bias is None else [x, w, bias]
    rest = ("NOTSET", "NCHW", [sh, sw], [ph, ph, pw, pw], [dh, dw])
    done = b.like(node, "Conv2D", given, groups, *rest)
    return activated(b, node, done, activation)


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
    """Convert to the values; a call that uses the indices stays eager."""
    check_max_pool(node, x.dim, dilation, ceil_mode)
    size, step, (ph, pw) = pairs(kernel, stride or kernel, padding)
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
        raise NotTaken("not of four dimensions, rounded up, or with a custom divisor")
    size, step, (ph, pw) = pairs(kernel, stride or kernel, padding)
    rest = (size, False, count_include_pad, step, [ph, ph, pw, pw], "")
    return b.like(node, "AveragePool", x, [2, 3], *rest)


@register_conversion(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(b: Source, node: fx.Node, x: Value, size: Sequence[int]) -> Value:
    if list(size) == [1, 1]:
        return b.like(node, "ReduceMean", x, True, [x.dim - 2, x.dim - 1])
    rows, columns = (averages(n, m).mT for n, m in zip(x.shape[-2:], size, strict=True))
    return between(b, x, rows, columns)


def between(b: Source, x: Value, rows: Tensor, columns: Tensor) -> Value:
    """Multiply x, of its last two dimensions, by `columns`, and its columns by `rows`."""
    dtype, wide = x.dtype, wider(x.dtype)
    order = [*range(x.dim - 2), x.dim - 1, x.dim - 2]
    x = b.cast(x, wide)
    for weights in (columns, rows):
        shape = (*x.shape[:-1], weights.shape[1])
        x = product(b, x, b.const(weights.to(wide)), False, (wide, shape))
        x = b.call("Transpose", x, order, out=(wide, (*shape[:-2], shape[-1], shape[-2])))
    return b.cast(x, dtype)


@register_conversion(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: Source, node: fx.Node, grad: Value, x: Value) -> Value:
    """Distribute each pixel of the gradient to its window."""
    sizes = zip(x.shape[-2:], grad.shape[-2:], strict=True)
    return between(b, grad, *(averages(n, m) for n, m in sizes))


@register_conversion(aten.convolution_backward.default)
def convolution_backward(
    b: Source,
    node: fx.Node,
    grad: Value,
    x: Value,
    w: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> list[Value | None]:
    """Compute the gradients of a convolution by convolutions of the builder."""
    if transposed or x.dim != 4:
        raise NotTaken("a transposed convolution, or not of two dimensions")
    steps = pairs(stride, padding, dilation)
    results: list[Value | None] = [None, None, None]
    if mask[0]:
        results[0] = _gradient_of_input(b, grad, x, w, steps, groups)
    if mask[1]:
        results[1] = _gradient_of_weight(b, grad, x, w, steps, groups)
    if mask[2]:
        out = (grad.dtype, (grad.shape[1],))
        results[2] = b.call("ReduceSum", grad, False, [0, 2, 3], out=out)
    return results


def _gradient_of_input(
    b: Source, grad: Value, x: Value, w: Value, steps: Sequence[Sequence[int]], groups: int
) -> Value:
    """Convolve the gradient, with zeros between its pixels, by the mirrored weight."""
    stride, padding, dilation = steps
    outputs, inputs, *kernel = w.shape
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    spread = _padded(b, grad, reach, reach, [s - 1 for s in stride])
    parts = b.reshape(w, (groups, outputs // groups, inputs, *kernel))
    shape = (groups, inputs, outputs // groups, *kernel)
    turned = b.call("Transpose", parts, [0, 2, 1, 3, 4], out=(w.dtype, shape))
    turned = b.reshape(turned, (groups * inputs, outputs // groups, *kernel))
    mirrored = b.call("Reverse", turned, [2, 3], out=(w.dtype, turned.shape))
    sizes = [n - r for n, r in zip(spread.shape[2:], reach, strict=True)]
    out = (x.dtype, (*x.shape[:2], *sizes))
    rest = ("NOTSET", "NCHW", [1, 1], [0, 0, 0, 0], dilation)
    whole = b.call("Conv2D", [spread, mirrored], groups, *rest, out=out)
    for dim, edge, size in zip((2, 3), padding, x.shape[2:], strict=True):
        last = min(edge + size, whole.shape[dim])
        kept = [last - edge if at == dim else n for at, n in enumerate(whole.shape)]
        whole = cut(b, whole, dim, edge, last, 1, (x.dtype, kept))
    missing = [size - n for size, n in zip(x.shape[2:], whole.shape[2:], strict=True)]
    return _padded(b, whole, [0, 0], missing, [0, 0])  # pixels outside of every window


def _gradient_of_weight(
    b: Source, grad: Value, x: Value, w: Value, steps: Sequence[Sequence[int]], groups: int
) -> Value:
    """Convolve the input by the gradient: the batch takes the place of the channels."""
    stride, padding, dilation = steps
    outputs, inputs, *kernel = w.shape
    padded = _padded(b, x, padding, padding, [0, 0])
    batch, _, *size = padded.shape
    parts = b.reshape(padded, (batch, groups, inputs, *size))
    shape = (inputs, groups, batch, *size)
    parts = b.call("Transpose", parts, [2, 1, 0, 3, 4], out=(x.dtype, shape))
    parts = b.reshape(parts, (inputs, groups * batch, *size))
    shape = (outputs, batch, *grad.shape[2:])
    turned = b.call("Transpose", grad, [1, 0, 2, 3], out=(grad.dtype, shape))
    sizes = [
        (n - s * (m - 1) - 1) // d + 1
        for n, m, s, d in zip(size, grad.shape[2:], stride, dilation, strict=True)
    ]
    rest = ("NOTSET", "NCHW", dilation, [0, 0, 0, 0], stride)
    out = (w.dtype, (inputs, outputs, *sizes))
    found = b.call("Conv2D", [parts, turned], groups, *rest, out=out)
    for dim, length in zip((2, 3), kernel, strict=True):
        kept = [length if at == dim else n for at, n in enumerate(found.shape)]
        found = cut(b, found, dim, 0, length, 1, (w.dtype, kept))
    return b.call("Transpose", found, [1, 0, 2, 3], out=(w.dtype, w.shape))


def _padded(
    b: Source, x: Value, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> Value:
    """Pad an image with zeros around it and between its pixels."""
    if not any([*low, *high, *inside]):
        return x
    pairs = zip(x.shape[2:], low, high, inside, strict=True)
    sizes = [before + after + n + (n - 1) * between for n, before, after, between in pairs]
    edges = ([0, 0, *low], [0, 0, *high], [0, 0, *inside])
    zero = b.scalar(0, x.dtype)
    return b.call("Pad", x, zero, CONSTANT_PADDING, *edges, out=(x.dtype, (*x.shape[:2], *sizes)))


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
    """Return also the mean and the inverse deviation, which the gradient needs: step by step."""
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
    """Repeat keys or values of fewer heads than q has, for its queries."""
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
    """Return which keys each query sees: where the column is not beyond the row."""
    square = tuple(shape[-2:])
    rows, columns = (
        b.call("Iota", Code("hlir_builder"), dim, out=(torch.int32, square)) for dim in (0, 1)
    )
    return b.call("LessEqual", columns, rows, [], out=(torch.bool, square))


@register_conversion(aten._native_batch_norm_legit_functional.default)
def batch_norm_training(
    b: Source,
    node: fx.Node,
    x: Value,
    w: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value]:
    """Return the norm by the batch's own statistics, these, and the new running statistics."""
    axes, wide = [0, *range(2, x.dim)], wider(x.dtype)
    count = math.prod(x.shape[axis] for axis in axes)
    if not training or count < 2:
        raise NotTaken("training of a norm by running statistics, or of one element")
    flat, row = (x.shape[1],), (1, x.shape[1], *[1] * (x.dim - 2))

    def step(function: str, left: Value, right: Value | float, shape: Sequence[int]) -> Value:
        by = b.scalar(right, wide)
        return b.call(function, left, b.spread(by, shape), [], out=(wide, tuple(shape)))

    def in_row(value: Value) -> Value:
        return b.reshape(b.cast(value, wide), row)

    up = b.cast(x, wide)
    away = centred(b, up, axes)
    var = averaged(b, b.call("Square", away, out=(wide, x.shape)), axes)
    rstd = b.call("Rsqrt", step("Add", var, eps, row), out=(wide, row))
    done = step("Mul", away, rstd, x.shape)
    if w is not None:
        done = step("Mul", done, in_row(w), x.shape)
    if bias is not None:
        done = step("Add", done, in_row(bias), x.shape)
    mean = b.reshape(averaged(b, up, axes), flat)
    unbiased = step("Mul", b.reshape(var, flat), count / (count - 1), flat)
    results = [done, mean, b.reshape(rstd, flat)]
    for new, old in ((mean, running_mean), (unbiased, running_var)):
        parts = step("Mul", new, momentum, flat), step("Mul", b.cast(old, wide), 1 - momentum, flat)
        results.append(step("Add", *parts, flat))
    kept = [value.dtype for value in node.meta["val"]]
    return [b.cast(value, dtype) for value, dtype in zip(results, kept, strict=True)]
