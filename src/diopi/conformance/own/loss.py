# SPDX-License-Identifier: Apache-2.0
"""Samples of losses that op_db lacks, and of gradients that torch splits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes, positive, whole

SHAPES = ((4, 3), (17, 129), (1, 1031))
REDUCTIONS = (0, 1, 2)


def _grad(dtype: torch.dtype, reduction: int, *shape: int) -> Tensor:
    """Create the gradient: one per loss, or one for their mean or sum."""
    return draw(dtype, *(() if reduction else shape))


@makes("cross_entropy_loss_backward", fixed=True)
def _cross_entropy(dtype: torch.dtype) -> Iterator[Sample]:
    for (rows, classes), reduction, smooth in product(SHAPES, REDUCTIONS, (0.0, 0.1)):
        target = whole(classes, rows)
        target[-1] = 1  # which is ignored
        yield called(
            grad_output=_grad(dtype, reduction, rows),
            input=draw(dtype, rows, classes),
            target=target,
            weight=positive(dtype, classes),
            reduction=reduction,
            ignore_index=1 if rows > 1 else -100,
            label_smoothing=smooth,
        )


@makes("binary_cross_entropy_with_logits_backward", fixed=True)
def _binary_cross_entropy(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, reduction, weighted in product(SHAPES, REDUCTIONS, (False, True)):
        yield called(
            grad_output=_grad(dtype, reduction, *shape),
            input=draw(dtype, *shape),
            target=torch.rand(shape).to(dtype),
            weight=positive(dtype, shape[-1]) if weighted else None,
            pos_weight=positive(dtype, shape[-1]) if weighted else None,
            reduction=reduction,
        )


@makes("sigmoid_focal_loss")
def _focal(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, reduction in product(SHAPES, REDUCTIONS):
        targets = whole(2, *shape).to(dtype)
        how = {"alpha": 0.25, "gamma": 2.0, "reduction": reduction}
        yield called(inputs=draw(dtype, *shape), targets=targets, **how)


@makes("sigmoid_focal_loss_backward", fixed=True)
def _focal_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, reduction in product(SHAPES, REDUCTIONS):
        yield called(
            grad_output=_grad(dtype, reduction, *shape),
            input=draw(dtype, *shape),
            target=whole(2, *shape).to(dtype),
            gamma=2.0,
            alpha=0.25,
            reduction=reduction,
        )


def _speech(dtype: torch.dtype, less: int = 0) -> Iterator[dict[str, Any]]:
    """Yield log-probabilities (time, batch, classes) and targets; the last row is shorter by
    `less`.

    log_alpha beyond the end of a shorter row is undefined, so the rows of the forward have one
    length.
    """
    for time, batch, classes, longest in ((5, 2, 3, 2), (17, 3, 9, 5), (33, 1, 5, 7)):
        yield {
            "log_probs": draw(torch.float64, time, batch, classes).log_softmax(2).to(dtype),
            "targets": torch.randint(1, classes, (batch, longest)),
            "input_lengths": torch.tensor([time] * (batch - 1) + [time - less]),
            "target_lengths": torch.tensor([longest] * (batch - 1) + [longest - less]),
            "blank": 0,
        }


def _listed(given: dict[str, Any]) -> dict[str, Any]:
    lengths = {name: given[name].tolist() for name in ("input_lengths", "target_lengths")}
    return {**given, **lengths}


@makes("ctc_loss", fixed=True)
def _ctc(dtype: torch.dtype) -> Iterator[Sample]:
    for given, reduction in product(_speech(dtype), REDUCTIONS):
        yield called(**given, reduction=reduction, zero_infinity=False)


@makes("ctc_loss_backward", fixed=True)
def _ctc_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given, reduction in product(_speech(dtype, less=1), REDUCTIONS):
        likelihood, alpha = torch.ops.aten._ctc_loss.Tensor(*given.values())
        yield called(
            grad_output=_grad(dtype, reduction, given["log_probs"].shape[1]),
            **given,
            neg_log_likelihood=likelihood,
            log_alpha=alpha,
            reduction=reduction,
            zero_infinity=False,
        )


@makes("ctc_loss_lists", fixed=True)
def _ctc_lists(dtype: torch.dtype) -> Iterator[Sample]:
    yield from (called(**_listed(given)) for given in _speech(dtype))


@makes("ctc_loss_lists_backward", fixed=True)
def _ctc_lists_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for given in map(_listed, _speech(dtype, less=1)):
        likelihood, alpha = torch.ops.aten._ctc_loss(*given.values())
        saved = {"neg_log_likelihood": likelihood, "log_alpha": alpha}
        yield called(grad=torch.randn_like(likelihood), **given, **saved)
