# SPDX-License-Identifier: Apache-2.0
"""Conversions of pooling, resizing and sampling of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from deeplink_vendors.cpu.onnx.conversion import computes, fake, known, reason
from deeplink_vendors.cpu.onnx.emitter import Name, OnnxEmitter, Value
from deeplink_vendors.cpu.onnx.matmul import spread
from deeplink_vendors.cpu.onnx.reduction import reduced
from deeplink_vendors.cpu.onnx.shape import shaped

aten = torch.ops.aten
AVERAGES = {
    aten.avg_pool1d.default: 1,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
}
MAXIMA = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
ADAPTIVE = {
    aten.adaptive_avg_pool1d.default: 1,
    aten._adaptive_avg_pool2d.default: 2,
    aten._adaptive_avg_pool3d.default: 3,
}


def _batched(e: OnnxEmitter, x: Value, dims: int) -> Name:
    return x if x.rank == dims + 2 else e.op("Unsqueeze", x, e.array([0]))


def _unbatched(e: OnnxEmitter, x: Value, dims: int, made: str) -> str:
    return made if x.rank == dims + 2 else e.op("Squeeze", made, e.array([0]))


def _windows(dims: int, size: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    kernel = spread(size, dims)
    return {
        "kernel_shape": kernel,
        "strides": spread(stride, dims) if stride else kernel,
        "pads": spread(padding, dims) * 2,
        "ceil_mode": int(ceil),
    }


def _average(target: Any, dims: int) -> None:
    @computes(target)
    def convert(
        e: OnnxEmitter,
        node: fx.Node,
        x: Value,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil: bool = False,
        count_padding: bool = True,
        divisor: int | None = None,
    ) -> Name:
        windows = _windows(dims, size, stride, padding, ceil)
        counted = int(count_padding or divisor is not None)
        made = e.op("AveragePool", _batched(e, x, dims), count_include_pad=counted, **windows)
        if divisor is not None:
            area = torch.Size(windows["kernel_shape"]).numel()
            made = e.op("Mul", made, e.number(area / divisor, x.dtype))
        return _unbatched(e, x, dims, made)

    @reason(target)
    def why_not(node: fx.Node) -> str | None:
        ceil = node.args[4] if len(node.args) > 4 else False
        divisor = node.args[6] if len(node.args) > 6 else None
        if ceil and divisor is not None:
            return "a custom divisor, with windows over the edge"
        return None


def _maximum(target: Any, dims: int) -> None:
    @computes(target)
    def convert(
        e: OnnxEmitter,
        node: fx.Node,
        x: Value,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil: bool = False,
    ) -> list[Name]:
        windows = _windows(dims, size, stride, padding, ceil)
        windows["dilations"] = spread(dilation, dims)
        made = e.ops("MaxPool", _batched(e, x, dims), results=2, **windows)
        # ONNX counts indices over the whole tensor, torch over one plane
        area = e.count(x, range(x.rank - dims, x.rank))
        plane = e.array(area) if isinstance(area, int) else area
        made[1] = e.op("Mod", made[1], plane)
        return [_unbatched(e, x, dims, name) for name in made]


def _adaptive(target: Any, dims: int) -> None:
    @computes(target)
    def convert(e: OnnxEmitter, node: fx.Node, x: Value, size: Any) -> Name:
        wanted = spread(list(size), dims)
        if all(one == 1 for one in wanted):
            return reduced(e, "ReduceMean", x, range(x.rank - dims, x.rank), True)
        made: Name = x
        for number, one in enumerate(wanted):
            dim = x.rank - dims + number
            made = _weighed(e, made, x.rank, dim, _shares(int(x.shape[dim]), one), x.dtype)
        return made

    @reason(target)
    def why_not(node: fx.Node) -> str | None:
        size = node.args[1]
        assert isinstance(size, list | tuple)
        if known(*fake(node.args[0]).shape[-dims:], *size) or all(one == 1 for one in size):
            return None
        return "its windows depend on an unknown size"


def _shares(size: int, wanted: int) -> Tensor:
    """Return the contribution of each element of a dimension to each of its windows."""
    shares = torch.zeros(size, wanted, dtype=torch.float64)
    for window in range(wanted):
        begin, end = window * size // wanted, -(-(window + 1) * size // wanted)
        shares[begin:end, window] = 1 / (end - begin)
    return shares


def _weighed(
    e: OnnxEmitter, x: Name, rank: int, dim: int, shares: Tensor, dtype: torch.dtype
) -> str:
    """Multiply by a matrix along one dimension."""
    order = [*(d for d in range(rank) if d != dim), dim]
    turned = e.op("Transpose", x, perm=order)
    made = e.op("MatMul", turned, e.array(shares.numpy(), dtype))
    return e.op("Transpose", made, perm=[order.index(d) for d in range(rank)])


for _target, _dims in AVERAGES.items():
    _average(_target, _dims)
for _target, _dims in MAXIMA.items():
    _maximum(_target, _dims)
for _target, _dims in ADAPTIVE.items():
    _adaptive(_target, _dims)


def _resized(e: OnnxEmitter, x: Value, size: Any, scales: Any, **attributes: Any) -> str:
    if scales is not None:
        factors = e.array([1.0, 1.0, *scales], torch.float32)
        return e.op("Resize", x, None, factors, **attributes)
    sizes = e.ints([e.size(x, 0), e.size(x, 1), *size])
    return e.op("Resize", x, None, None, sizes, **attributes)


@computes(aten.upsample_nearest2d.vec)
def nearest(e: OnnxEmitter, node: fx.Node, x: Value, size: Any, scales: Any) -> Name:
    return _resized(
        e, x, size, scales,
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


@computes(aten.upsample_bilinear2d.vec)
def bilinear(
    e: OnnxEmitter, node: fx.Node, x: Value, size: Any, corners: bool, scales: Any
) -> Name:
    how = "align_corners" if corners else "half_pixel"
    return _resized(e, x, size, scales, mode="linear", coordinate_transformation_mode=how)


MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@computes(aten.grid_sampler_2d.default)
def grid_sample(
    e: OnnxEmitter, node: fx.Node, x: Value, grid: Value, mode: int, padding: int, corners: bool
) -> Name:
    return e.op(
        "GridSample", x, grid,
        mode=MODES[mode], padding_mode=PADDINGS[padding], align_corners=int(corners),
    )  # fmt: skip


@computes(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(e: OnnxEmitter, node: fx.Node, grad: Value, x: Value, *rest: Any) -> Name:
    places = rest[-1]
    lead = [e.size(x, dim) for dim in range(x.rank - 2)]
    flat = [shaped(e, value, [*lead, -1]) for value in (grad, places)]
    zeros = e.op("Expand", e.number(0, x.dtype), e.ints([*lead, e.count(x, (-2, -1))]))
    made = e.op("ScatterElements", zeros, flat[1], flat[0], axis=-1, reduction="add")
    return shaped(e, made, [e.size(x, dim) for dim in range(x.rank)])


@computes(aten._adaptive_avg_pool2d_backward.default)
def adaptive_backward(e: OnnxEmitter, node: fx.Node, grad: Value, x: Value) -> Name:
    made: Name = grad
    for dim in (x.rank - 2, x.rank - 1):
        size, wanted = int(x.shape[dim]), int(grad.shape[dim])
        made = _weighed(e, made, x.rank, dim, _shares(size, wanted).T, x.dtype)
    return made


@reason(aten._adaptive_avg_pool2d_backward.default)
def _why_not_adaptive_backward(node: fx.Node) -> str | None:
    sizes = [*fake(node.args[0]).shape[-2:], *fake(node.args[1]).shape[-2:]]
    return None if known(*sizes) else "its windows depend on an unknown size"
