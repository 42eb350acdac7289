# SPDX-License-Identifier: Apache-2.0
"""Samples of normalizations that op_db lacks, and of the pieces of synchronized batch norm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes, positive
from diopi.op import get

EPS = 1e-5
MAPS = ((4, 3, 5), (2, 5, 7, 9), (3, 2, 1031))  # batch, channels, places


def _both(dtype: torch.dtype, shape: Any, biased: bool = True) -> dict[str, Any]:
    return {
        "weight": draw(dtype, *shape),
        "bias": draw(dtype, *shape) if biased else None,
    }


def _legit(running: bool) -> Any:
    def make(dtype: torch.dtype) -> Iterator[Sample]:
        for shape, training in product(MAPS, (True, False)):
            if not training and not running:
                continue
            means = {"running_mean": draw(dtype, shape[1])}
            means["running_var"] = positive(dtype, shape[1])
            yield called(
                input=draw(dtype, *shape),
                **_both(dtype, shape[1:2]),
                **(means if running else {}),
                training=training,
                momentum=0.1,
                eps=EPS,
            )

    return make


makes("batch_norm_legit")(_legit(running=True))
makes("batch_norm_legit_no_stats")(_legit(running=False))


@makes("batch_norm_stats")
def _stats(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(input=draw(dtype, *shape), eps=EPS) for shape in MAPS)


def _moments(dtype: torch.dtype, *shape: int) -> dict[str, Any]:
    return {"mean": draw(dtype, *shape), "invstd": positive(dtype, *shape)}


@makes("batch_norm_elemt")
def _elemt(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, affine in product(MAPS, (True, False)):
        more = _both(dtype, shape[1:2]) if affine else {"weight": None, "bias": None}
        yield called(input=draw(dtype, *shape), **more, **_moments(dtype, shape[1]), eps=EPS)


@makes("batch_norm_gather_stats_with_counts", fixed=True)
def _gather(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, ranks in product(MAPS, (1, 3)):
        yield called(
            input=draw(dtype, *shape),
            **_moments(dtype, ranks, shape[1]),
            running_mean=draw(dtype, shape[1]),
            running_var=positive(dtype, shape[1]),
            momentum=0.1,
            eps=EPS,
            counts=torch.arange(ranks).add(9).to(dtype),
        )


@makes("batch_norm_backward_reduce")
def _reduce(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, mask in product(MAPS, ((True, True, True), (True, False, True))):
        yield called(
            grad_out=draw(dtype, *shape),
            input=draw(dtype, *shape),
            **_moments(dtype, shape[1]),
            weight=draw(dtype, shape[1]),
            input_g=mask[0],
            weight_g=mask[1],
            bias_g=mask[2],
        )


@makes("batch_norm_backward_elemt", fixed=True)
def _backward_elemt(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, ranks in product(MAPS, (1, 3)):
        yield called(
            grad_out=draw(dtype, *shape),
            input=draw(dtype, *shape),
            **_moments(dtype, shape[1]),
            weight=draw(dtype, shape[1]),
            sum_dy=draw(dtype, shape[1]),
            sum_dy_xmu=draw(dtype, shape[1]),
            count=torch.arange(ranks, dtype=torch.int32) + 9,
        )


ROWS = (((2, 3, 4), 1), ((5, 129), 1), ((3, 4, 1031), 2), ((0, 5), 1))


@makes("layer_norm_gb")
def _layer_norm_gb(dtype: torch.dtype) -> Iterator[Sample]:
    for (shape, axis), biased in product(ROWS, (True, False)):
        more = _both(dtype, shape[axis:], biased)
        yield called(input=draw(dtype, *shape), **more, eps=EPS, begin_norm_axis=axis)


@makes("layer_norm_gb_backward", fixed=True)
def _layer_norm_gb_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axis in ROWS:
        more = {"input": draw(dtype, *shape), **_both(dtype, shape[axis:])}
        _, mean, rstd = get("layer_norm_gb")(**more, eps=EPS, begin_norm_axis=axis)
        grad = draw(dtype, *shape)
        yield called(grad_output=grad, **more, mean=mean, rstd=rstd, begin_norm_axis=axis)


@makes("rms_norm")
def _rms_norm(dtype: torch.dtype) -> Iterator[Sample]:
    for (shape, axis), biased in product(ROWS, (True, False)):
        inner = list(shape[axis:])
        yield called(
            input=draw(dtype, *shape),
            normalized_shape=inner,
            **_both(dtype, inner, biased),
            eps=EPS,
        )


@makes("rms_norm_backward", fixed=True)
def _rms_norm_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axis in ROWS:
        inner = {"normalized_shape": list(shape[axis:]), "eps": EPS}
        more = {"input": draw(dtype, *shape), **_both(dtype, shape[axis:])}
        _, inv_rms = get("rms_norm")(**more, **inner)
        yield called(grad_output=draw(dtype, *shape), **more, inv_rms=inv_rms, **inner)


@makes("fused_rms_norm_backward", fixed=True)
def _fused_rms_norm_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for (shape, axis), mask in product(ROWS[:3], ((True, True), (True, False))):
        inner, weight = list(shape[axis:]), draw(dtype, *shape[axis:])
        input = draw(dtype, *shape)
        _, rstd = torch.ops.aten._fused_rms_norm(input, inner, weight, EPS)
        yield called(
            grad_out=draw(dtype, *shape),
            input=input,
            normalized_shape=inner,
            rstd=rstd,
            weight=weight,
            output_mask=list(mask),
        )


IMAGES = (((2, 3, 4, 5), 1), ((3, 7, 9, 2), 3), ((1, 2, 1031), 1))


@makes("instance_norm")
def _instance_norm(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axis in IMAGES:
        scale, bias = draw(dtype, shape[axis]), draw(dtype, shape[axis])
        yield called(input=draw(dtype, *shape), scale=scale, bias=bias, axis=axis, eps=EPS)


@makes("instance_norm_backward")
def _instance_norm_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _instance_norm(dtype):
        yield called(grad_output=torch.randn_like(sample.kwargs["input"]), **sample.kwargs)


@makes("normalize")
def _normalize(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axis in (((3, 4), 1), ((5, 129, 2), 1), ((1031, 3), 0)):
        for p in (2.0, 1.0):
            yield called(input=draw(dtype, *shape), p=p, axis=axis, eps=1e-6)


@makes("normalize_backward")
def _normalize_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _normalize(dtype):
        yield called(grad_output=torch.randn_like(sample.kwargs["input"]), **sample.kwargs)


WEIGHTS = (((3, 4), 0), ((5, 129), 0), ((33, 2, 7), 2))


def _gains(shape: tuple[int, ...], dim: int) -> list[int]:
    return [size if place == dim else 1 for place, size in enumerate(shape)]


@makes("weight_norm", fixed=True)  # torch does not check that they fit
def _weight_norm(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim in WEIGHTS:
        yield called(v=draw(dtype, *shape), g=draw(dtype, *_gains(shape, dim)), dim=dim)


@makes("weight_norm_backward", fixed=True)
def _weight_norm_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _weight_norm(dtype):
        v, g, dim = (sample.kwargs[name] for name in "v g dim".split())
        _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
        grad = torch.randn_like(v)
        yield called(grad_w=grad, saved_v=v, saved_g=g, saved_norms=norms, dim=dim)
