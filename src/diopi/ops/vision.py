# SPDX-License-Identifier: Apache-2.0
"""Images and boxes: resizing, sampling, regions of interest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diopi.gradient import gradient
from diopi.op import FLOATS, WIDE_FLOATS, op

FAMILY = "vision"
NN = "nn.functional."

# torch's names of the interpolations, by mode and number of spatial dimensions
LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}


def nms(boxes: Tensor, confidence: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the kept boxes (x1, y1, x2, y2), best first:
    none overlaps a better one.
    """
    order = confidence.argsort(descending=True, stable=True).tolist()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    overlaps = shared / (area[:, None] + area[None] - shared) > iou_threshold
    kept: list[int] = []
    for candidate in order:
        if not any(bool(overlaps[better, candidate]) for better in kept):
            kept.append(candidate)
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Resample each region (batch, x1, y1, x2, y2) to a grid of means of bilinear samples."""
    size = (pooled_height, pooled_width)
    regions = [
        _region(input[int(roi[0])], roi[1:] * spatial_scale, size, sampling_ratio, aligned)
        for roi in rois
    ]
    empty = input.new_zeros((0, input.shape[1], *size))
    return torch.stack(regions) if regions else empty


def _region(
    image: Tensor, box: Tensor, size: tuple[int, int], sampling_ratio: int, aligned: bool
) -> Tensor:
    offset, smallest = (0.5, 0.0) if aligned else (0.0, 1.0)
    axes = []
    for bins, low, high in ((size[0], box[1], box[3]), (size[1], box[0], box[2])):
        length = (high - low).clamp(min=smallest) if not aligned else high - low
        samples = sampling_ratio if sampling_ratio > 0 else int((length / bins).ceil())
        steps = torch.arange(bins * samples, dtype=image.dtype, device=image.device)
        axes.append((low - offset + (steps + 0.5) * length / (bins * samples), samples))
    (y, rows), (x, columns) = axes
    values = _bilinear(image, y, x)
    if not rows or not columns:
        return image.new_zeros((image.shape[0], *size))
    return values.view(-1, size[0], rows, size[1], columns).mean((2, 4))


def _bilinear(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return samples at the grid y by x; zero farther than one pixel outside."""
    height, width = image.shape[-2:]
    inside = ((y >= -1) & (y <= height))[:, None] & ((x >= -1) & (x <= width))[None]
    total = image.new_zeros((image.shape[0], len(y), len(x)))
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    for near_y, weight_y in _corners(y, height):
        for near_x, weight_x in _corners(x, width):
            weight = weight_y[:, None] * weight_x[None]
            total = total + image[:, near_y][:, :, near_x] * weight
    return total * inside


def _corners(position: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    low = position.floor().long()
    fraction = position - low
    return [(low, 1 - fraction), ((low + 1).clamp(max=size - 1), fraction)]


def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Return the gradient of roi_align for an input of the given size."""
    input = grad.new_zeros((batch_size, channels, height, width))
    arguments: Any = (rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    return gradient(lambda x: roi_align(x, *arguments), (input,), grad)


def grid_sample(input: Tensor, grid: Tensor, mode: str) -> Tensor:
    """Return samples at the grid; zeros outside, corners not aligned."""
    return torch.nn.functional.grid_sample(input, grid, mode, "zeros", False)


def upsample_nearest(input: Tensor, size: list[int]) -> Tensor:
    """Resize by the nearest neighbour, in one, two or three dimensions."""
    found: Tensor = torch.nn.functional.interpolate(input, size=size, mode="nearest")
    return found


def upsample_nearest_backward(
    grad_output: Tensor, out_size: list[int], in_size: list[int]
) -> Tensor:
    """Return the gradient of upsample_nearest."""
    name = f"upsample_nearest{len(in_size) - 2}d_backward"
    found: Tensor = getattr(torch.ops.aten, name)(grad_output, out_size, in_size)
    return found


def upsample_linear(input: Tensor, size: list[int], align_corners: bool, mode: str) -> Tensor:
    """Resize by interpolation; `mode`: linear, bilinear, bicubic or trilinear."""
    found: Tensor = torch.nn.functional.interpolate(
        input, size=size, mode=mode, align_corners=align_corners
    )
    return found


def upsample_linear_backward(
    grad_output: Tensor, out_size: list[int], in_size: list[int], align_corners: bool, mode: str
) -> Tensor:
    """Return the gradient of upsample_linear."""
    name = f"upsample_{mode}{LINEAR.get(mode, 2)}d_backward"
    found: Tensor = getattr(torch.ops.aten, name)(grad_output, out_size, in_size, align_corners)
    return found


# fmt: off
BACKWARDS: dict[Callable[..., Any], Callable[..., Any] | None] = {
    nms: None,
    roi_align: roi_align_backward,
    grid_sample: None,
    upsample_nearest: upsample_nearest_backward,
    upsample_linear: upsample_linear_backward,
}
for forward, backward in BACKWARDS.items():
    op(forward.__name__, FAMILY, kind="index" if forward is nms else "composite",
       dtypes=WIDE_FLOATS, meaning=forward, opinfo="", dynamic=forward is nms,
       backward=backward.__name__ if backward else "")
    if backward:
        op(backward.__name__, FAMILY, kind="composite", dtypes=WIDE_FLOATS, meaning=backward,
           results="grad_input", opinfo="")

for n in (1, 2, 3):
    op(f"upsample_nearest{n}d", FAMILY, kind="exact", dtypes=FLOATS, opinfo=NN + "upsample_nearest",
       backward=f"upsample_nearest{n}d_backward")
    op(f"upsample_nearest{n}d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
       opinfo=NN + "upsample_nearest")
for name in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d"):
    entry = f"{NN}interpolate.{name[:-2]}"
    op(f"upsample_{name}", FAMILY, kind="composite", dtypes=FLOATS, opinfo=entry,
       backward=f"upsample_{name}_backward")
    op(f"upsample_{name}_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo=entry)
for n in (2, 3):
    op(f"grid_sampler_{n}d", FAMILY, kind="composite", dtypes=WIDE_FLOATS,
       backward=f"grid_sampler_{n}d_backward",
       opinfo="grid_sampler_2d" if n == 2 else NN + "grid_sample")
    op(f"grid_sampler_{n}d_backward", FAMILY, kind="composite", dtypes=WIDE_FLOATS,
       opinfo=NN + "grid_sample")
