# SPDX-License-Identifier: Apache-2.0
"""Samples of boxes, regions and resizing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes


def _boxes(dtype: torch.dtype, count: int, width: float, height: float) -> Tensor:
    corner = torch.rand(count, 2, dtype=torch.float64) * 0.6
    size = torch.rand(count, 2, dtype=torch.float64) * 0.4 + 0.05
    scale = torch.tensor([width, height, width, height], dtype=torch.float64)
    return (torch.cat((corner, corner + size), 1) * scale).to(dtype)


@makes("nms", fixed=True)
def _nms(dtype: torch.dtype) -> Iterator[Sample]:
    for count, threshold in product((1, 9, 129, 0), (0.1, 0.5)):
        boxes = _boxes(dtype, count, 10, 10)
        boxes = torch.cat((boxes, boxes[: count // 3]))  # some twice: the better one is kept
        scores = torch.randperm(len(boxes)).to(dtype) / max(len(boxes), 1)
        yield called(boxes=boxes, confidence=scores, iou_threshold=threshold)


REGIONS = ((2, 3, 6, 7, 4), (1, 2, 17, 33, 9), (2, 1, 9, 5, 0))
POOLED = ((2, 3, 2), (3, 1, 0))  # height, width, samples per bin (0: as many as fit)


def _rois(dtype: torch.dtype, batch: int, height: int, width: int, count: int) -> Tensor:
    rows = torch.randint(batch, (count, 1)).to(dtype)
    return torch.cat((rows, _boxes(dtype, count, width * 2, height * 2)), 1)


@makes("roi_align", fixed=True)
def _roi_align(dtype: torch.dtype) -> Iterator[Sample]:
    for (batch, channels, height, width, count), (rows, columns, samples), aligned in product(
        REGIONS, POOLED, (True, False)
    ):
        yield called(
            input=draw(dtype, batch, channels, height, width),
            rois=_rois(dtype, batch, height, width, count),
            spatial_scale=0.5,
            pooled_height=rows,
            pooled_width=columns,
            sampling_ratio=samples,
            aligned=aligned,
        )


@makes("roi_align_backward", fixed=True)
def _roi_align_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _roi_align(dtype):
        given = dict(sample.kwargs)
        batch, channels, height, width = given.pop("input").shape
        pooled = given["pooled_height"], given["pooled_width"]
        grad = draw(dtype, len(given["rois"]), channels, *pooled)
        if not len(given["rois"]):
            continue  # nothing to differentiate
        size = {"batch_size": batch, "channels": channels, "height": height, "width": width}
        yield called(grad=grad, **given, **size)


@makes("grid_sample", fixed=True)
def _grid_sample(dtype: torch.dtype) -> Iterator[Sample]:
    for (height, width), mode in product(((4, 5), (17, 3)), ("bilinear", "nearest", "bicubic")):
        grid = torch.rand(2, 5, 7, 2, dtype=torch.float64) * 2.4 - 1.2  # some outside
        yield called(input=draw(dtype, 2, 3, height, width), grid=grid.to(dtype), mode=mode)


# size before, and after
RESIZED = (((4,), (9,)), ((5, 7), (10, 3)), ((17, 9), (33, 20)), ((3, 4, 5), (6, 4, 7)))
MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


@makes("upsample_nearest")
def _upsample_nearest(dtype: torch.dtype) -> Iterator[Sample]:
    for before, after in RESIZED:
        yield called(input=draw(dtype, 2, 3, *before), size=list(after))


@makes("upsample_nearest_backward")
def _upsample_nearest_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for before, after in RESIZED:
        grad = draw(dtype, 2, 3, *after)
        yield called(grad_output=grad, out_size=list(after), in_size=[2, 3, *before])


@makes("upsample_linear")
def _upsample_linear(dtype: torch.dtype) -> Iterator[Sample]:
    for (before, after), aligned in product(RESIZED, (False, True)):
        for mode in MODES[len(before)]:
            how = {"size": list(after), "align_corners": aligned, "mode": mode}
            yield called(input=draw(dtype, 2, 3, *before), **how)


@makes("upsample_linear_backward")
def _upsample_linear_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for (before, after), aligned in product(RESIZED, (False, True)):
        for mode in MODES[len(before)]:
            sizes = {"out_size": list(after), "in_size": [2, 3, *before]}
            grad = draw(dtype, 2, 3, *after)
            yield called(grad_output=grad, **sizes, align_corners=aligned, mode=mode)


@makes("im2col")
def _im2col(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, (kernel, dilation, padding, stride) in product(
        ((2, 3, 6, 7), (1, 2, 17, 9)), ((2, 1, 0, 1), (3, 2, 1, 2))
    ):
        window = {"kernel_size": [kernel] * 2, "dilation": [dilation] * 2}
        window |= {"padding": [padding] * 2, "stride": [stride] * 2}
        yield called(input=draw(dtype, *shape), **window)


@makes("col2im", fixed=True)
def _col2im(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _im2col(dtype):
        given = dict(sample.kwargs)
        image = given.pop("input")
        columns = torch.ops.aten.im2col(image, **given)
        yield called(input=torch.randn_like(columns), output_size=list(image.shape[-2:]), **given)
