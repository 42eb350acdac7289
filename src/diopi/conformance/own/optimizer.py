# SPDX-License-Identifier: Apache-2.0
"""Samples of optimizer steps and of the ops of a gradient scaler, which write their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes, positive

SHAPES = ((5,), (3, 129), (1031,))
LISTS = (((5,), (3, 7)), ((1031,), (), (2, 33)))


@makes("sgd", fixed=True)
def _sgd(dtype: torch.dtype) -> Iterator[Sample]:
    ways = ((0.0, 0.0, False), (0.9, 0.1, False), (0.9, 0.0, True))
    for shape, (momentum, dampening, nesterov) in product(SHAPES, ways):
        yield called(
            param=draw(dtype, *shape),
            grad=draw(dtype, *shape),
            buf=draw(dtype, *shape),
            lr=0.1,
            momentum=momentum,
            dampening=dampening,
            weight_decay=0.01,
            nesterov=nesterov,
        )


@makes("adam", "adamw", fixed=True)
def _adam(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, amsgrad in product(SHAPES, (False, True)):
        yield called(
            param=draw(dtype, *shape),
            grad=draw(dtype, *shape),
            exp_avg=draw(dtype, *shape),
            exp_avg_sq=positive(dtype, *shape),
            max_exp_avg_sq=positive(dtype, *shape) if amsgrad else None,
            **MOMENTS,
            step=3,
            amsgrad=amsgrad,
        )


MOMENTS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6}


@makes("adadelta", fixed=True)
def _adadelta(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in SHAPES:
        yield called(
            param=draw(dtype, *shape),
            grad=draw(dtype, *shape),
            square_avg=positive(dtype, *shape),
            acc_delta=positive(dtype, *shape),
            lr=0.1,
            rho=0.9,
            eps=1e-6,
            weight_decay=0.01,
        )


@makes("rmsprop", fixed=True)
def _rmsprop(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, centered, momentum in product(SHAPES, (False, True), (0.0, 0.9)):
        yield called(
            param=draw(dtype, *shape),
            grad=draw(dtype, *shape),
            square_avg=positive(dtype, *shape) + 9,  # far above the square of the mean
            grad_avg=draw(dtype, *shape).clamp(-1, 1) if centered else None,
            momentum_buf=draw(dtype, *shape) if momentum else None,
            lr=0.1,
            alpha=0.9,
            eps=1e-6,
            weight_decay=0.01,
            momentum=momentum,
            centered=centered,
        )


@makes("clip_grad_norm", fixed=True)
def _clip_grad_norm(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes, (most, order) in product(LISTS, ((0.5, 2.0), (1e4, 2.0), (0.5, float("inf")))):
        grads = [draw(dtype, *shape) for shape in shapes]
        yield called(grads=grads, max_norm=most, norm_type=order, error_if_nonfinite=False)


def _state(dtype: torch.dtype, shapes: Any, *names: str) -> dict[str, list[Tensor]]:
    return {name: [positive(dtype, *shape) for shape in shapes] for name in names}


def _fused(dtype: torch.dtype, shapes: Any, *names: str) -> dict[str, list[Tensor]]:
    weights = {name: [draw(dtype, *shape) for shape in shapes] for name in ("input", "grads")}
    return {**weights, **_state(dtype, shapes, *names)}


def _steps(shapes: Any) -> list[Tensor]:
    return [torch.tensor(3.0) for _ in shapes]


@makes("fused_adam", "fused_adamw", fixed=True)
def _fused_adam(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes, amsgrad, maximize in product(LISTS, (False, True), (False, True)):
        states = _fused(dtype, shapes, "exp_avgs", "exp_avg_sqs")
        largest = _state(dtype, shapes, "max_exp_avg_sqs") if amsgrad else {"max_exp_avg_sqs": []}
        ways = {"amsgrad": amsgrad, "maximize": maximize}
        yield called(**states, **largest, state_steps=_steps(shapes), **MOMENTS, **ways)


@makes("fused_sgd", fixed=True)
def _fused_sgd(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes, (first, nesterov) in product(LISTS, ((True, False), (False, True))):
        states = _fused(dtype, shapes, "momentum_buffer_list")
        rates = {"weight_decay": 0.01, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}
        ways = {"nesterov": nesterov, "maximize": False, "is_first_step": first}
        yield called(**states, **rates, **ways)


@makes("fused_adagrad", fixed=True)
def _fused_adagrad(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes, maximize in product(LISTS, (False, True)):
        states = _fused(dtype, shapes, "state_sums")
        rates = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.01, "eps": 1e-6}
        yield called(**states, state_steps=_steps(shapes), **rates, maximize=maximize)


@makes("amp_foreach_non_finite_check_and_unscale", fixed=True)
def _unscale(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes, bad in product(LISTS, (None, torch.inf, torch.nan)):
        grads = [draw(dtype, *shape) for shape in shapes]
        if bad is not None:
            grads[0].view(-1)[-1] = bad
        yield called(input=grads, found_inf=torch.zeros(1), inv_scale=torch.full((1,), 0.125))


@makes("amp_update_scale", fixed=True)
def _update_scale(dtype: torch.dtype) -> Iterator[Sample]:
    for scale, good, bad in ((8.0, 0, 1.0), (8.0, 0, 0.0), (8.0, 1, 0.0), (3e38, 1, 0.0)):
        yield called(
            input=torch.full((1,), scale, dtype=dtype),
            growth_tracker=torch.full((1,), good, dtype=torch.int32),
            found_inf=torch.full((1,), bad),
            scale_growth_factor=2.0,
            scale_backoff_factor=0.5,
            growth_interval=2,
        )
