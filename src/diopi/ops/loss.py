# SPDX-License-Identifier: Apache-2.0
"""Losses and their gradients; `reduction` is 0 (none), 1 (mean) or 2 (sum)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diopi.gradient import gradient
from diopi.op import FLOATS, WIDE_FLOATS, op

FAMILY = "loss"
NN = "nn.functional."
REDUCTIONS = ("none", "mean", "sum")


def reduced(loss: Tensor, reduction: int) -> Tensor:
    return (loss, loss.mean(), loss.sum())[reduction] if reduction else loss


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of rows of classes, or maps of them (4 dimensions); also returns the
    sum
    of the used weights.
    """
    found: tuple[Tensor, Tensor] = _nll(input, "forward")(
        input, target, weight, reduction, ignore_index
    )
    return found


def nll_loss_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Return the gradient of nll_loss for the input."""
    found: Tensor = _nll(input, "backward")(
        grad_output, input, target, weight, reduction, ignore_index, total_weight
    )
    return found


def _nll(input: Tensor, direction: str) -> Callable[..., Any]:
    name = "nll_loss2d" if input.dim() == 4 else "nll_loss"
    function: Callable[..., Any] = getattr(torch.ops.aten, f"{name}_{direction}")
    return function


def cross_entropy_loss_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Return the gradient of cross_entropy_loss for the input."""
    return gradient(
        lambda x: torch.ops.aten.cross_entropy_loss(
            x, target, weight, reduction, ignore_index, label_smoothing
        ),
        (input,),
        grad_output,
    )


def bce_with_logits_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    reduction: int,
) -> Tensor:
    """Return the gradient of binary_cross_entropy_with_logits for the input."""
    return gradient(
        lambda x: torch.ops.aten.binary_cross_entropy_with_logits(
            x, target, weight, pos_weight, reduction
        ),
        (input,),
        grad_output,
    )


def sigmoid_focal_loss(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: int
) -> Tensor:
    """Return alpha_t * (1 - p_t)^gamma * cross entropy, with p = sigmoid(inputs)."""
    probability = inputs.sigmoid()
    entropy = functional.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    right = probability * targets + (1 - probability) * (1 - targets)
    loss = entropy * (1 - right) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * targets + (1 - alpha) * (1 - targets))
    return reduced(loss, reduction)


def sigmoid_focal_loss_backward(
    grad_output: Tensor, input: Tensor, target: Tensor, gamma: float, alpha: float, reduction: int
) -> Tensor:
    """Return the gradient of sigmoid_focal_loss for the input."""
    return gradient(
        lambda x: sigmoid_focal_loss(x, target, alpha, gamma, reduction), (input,), grad_output
    )


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reduced loss, and each sample's negative log-likelihood and log alpha."""
    loss, log_alpha = torch.ops.aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    value = torch.where(loss.isinf(), loss.new_zeros(()), loss) if zero_infinity else loss
    if reduction == 1:
        value = value / target_lengths.clamp_min(1).to(value.dtype)
    return reduced(value, reduction), loss, log_alpha


def ctc_loss_backward(
    grad_output: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> Tensor:
    """Return the gradient of ctc_loss for log_probs."""
    del neg_log_likelihood, log_alpha  # a kernel may use them
    return gradient(
        lambda x: ctc_loss(
            x, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )[0],
        (log_probs,),
        grad_output,
    )


# fmt: off
# each has <name>_backward and an entry in op_db
for name in "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy".split():
    op(name, FAMILY, kind="composite", dtypes=FLOATS, backward=f"{name}_backward", opinfo=NN + name)
    op(f"{name}_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo=NN + name)
for name in "multi_margin_loss multilabel_margin_loss".split():
    aten = name if name == "multi_margin_loss" else "multilabel_margin_loss_forward"
    op(name, FAMILY, aten=aten, kind="composite", dtypes=WIDE_FLOATS, backward=f"{name}_backward",
       opinfo=NN + name)
    op(f"{name}_backward", FAMILY, kind="composite", dtypes=WIDE_FLOATS, opinfo=NN + name)
for name in "l1_loss kl_div hinge_embedding_loss margin_ranking_loss".split():
    op(name, FAMILY, kind="composite", dtypes=FLOATS, opinfo=NN + name)
op("cosine_similarity", FAMILY, kind="composite", dtypes=FLOATS, opinfo=NN + "cosine_similarity")

op("nll_loss", FAMILY, aten="nll_loss_forward nll_loss2d_forward", kind="reduction", dtypes=FLOATS,
   meaning=nll_loss, backward="nll_loss_backward", opinfo=NN + "nll_loss")
op("nll_loss_backward", FAMILY, aten="nll_loss_backward nll_loss2d_backward", kind="elementwise",
   dtypes=FLOATS, meaning=nll_loss_backward, opinfo=NN + "nll_loss")
op("cross_entropy_loss", FAMILY, kind="composite", dtypes=FLOATS,
   backward="cross_entropy_loss_backward", opinfo=NN + "cross_entropy")
op("cross_entropy_loss_backward", FAMILY, kind="composite", dtypes=FLOATS,
   meaning=cross_entropy_loss_backward, opinfo=NN + "cross_entropy")
op("binary_cross_entropy_with_logits", FAMILY, kind="composite", dtypes=FLOATS,
   backward="binary_cross_entropy_with_logits_backward",
   opinfo=NN + "binary_cross_entropy_with_logits")
op("binary_cross_entropy_with_logits_backward", FAMILY, kind="composite", dtypes=FLOATS,
   meaning=bce_with_logits_backward, opinfo=NN + "binary_cross_entropy_with_logits")
op("sigmoid_focal_loss", FAMILY, kind="composite", dtypes=FLOATS, meaning=sigmoid_focal_loss,
   backward="sigmoid_focal_loss_backward", opinfo="")
op("sigmoid_focal_loss_backward", FAMILY, kind="composite", dtypes=FLOATS,
   meaning=sigmoid_focal_loss_backward, opinfo="")

op("ctc_loss", FAMILY, kind="composite", dtypes=WIDE_FLOATS, meaning=ctc_loss,
   backward="ctc_loss_backward", opinfo="", results="out neg_log_likelihood log_alpha")
op("ctc_loss_backward", FAMILY, kind="composite", dtypes=WIDE_FLOATS, meaning=ctc_loss_backward,
   opinfo="")
op("ctc_loss_lists", FAMILY, aten="_ctc_loss", kind="composite", dtypes=WIDE_FLOATS, opinfo="",
   backward="ctc_loss_lists_backward", doc="ctc_loss_forward with the lengths as lists.")
op("ctc_loss_lists_backward", FAMILY, aten="_ctc_loss_backward", kind="composite",
   dtypes=WIDE_FLOATS, opinfo="")
op("ctc_loss_forward", FAMILY, aten="_ctc_loss.Tensor", kind="composite", dtypes=WIDE_FLOATS,
   opinfo=NN + "ctc_loss")
op("ctc_loss_forward_backward", FAMILY, aten="_ctc_loss_backward.Tensor", kind="composite",
   dtypes=WIDE_FLOATS, opinfo=NN + "ctc_loss",
   doc="The gradient of ctc_loss_forward, in the form that torch calls.")
