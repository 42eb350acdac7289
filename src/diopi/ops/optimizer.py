# SPDX-License-Identifier: Apache-2.0
"""One step of an optimizer, for one parameter or a list; the arguments are updated in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diopi.op import FLOATS, op

FAMILY = "optimizer"


def sgd(
    param: Tensor,
    grad: Tensor,
    buf: Tensor,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
) -> None:
    """Update buf = momentum * buf + (1 - dampening) * g;
    param -= lr * (g + momentum * buf, or buf).
    """
    step = grad + weight_decay * param if weight_decay else grad
    if momentum:
        buf.mul_(momentum).add_(step, alpha=1 - dampening)
        step = step + momentum * buf if nesterov else buf
    param.sub_(lr * step)


def _adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    amsgrad: bool,
) -> None:
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    second = exp_avg_sq
    if amsgrad and max_exp_avg_sq is not None:
        second = torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
    denominator = second.sqrt() / (1 - beta2**step) ** 0.5 + eps
    param.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**step))


def adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    amsgrad: bool,
) -> None:
    """Adam step; the weight decay is part of the gradient."""
    grad = grad + weight_decay * param if weight_decay else grad
    _adam(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, lr, beta1, beta2, eps, step, amsgrad)


def adamw(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    amsgrad: bool,
) -> None:
    """Adam step; the weight decay is applied to the parameter before the step."""
    param.mul_(1 - lr * weight_decay)
    _adam(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, lr, beta1, beta2, eps, step, amsgrad)


def adadelta(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Adadelta step: proportional to the ratio of the running means of steps and of gradients."""
    grad = grad + weight_decay * param if weight_decay else grad
    square_avg.mul_(rho).addcmul_(grad, grad, value=1 - rho)
    delta = (acc_delta + eps).sqrt() / (square_avg + eps).sqrt() * grad
    acc_delta.mul_(rho).addcmul_(delta, delta, value=1 - rho)
    param.sub_(lr * delta)


def rmsprop(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    grad_avg: Tensor | None,
    momentum_buf: Tensor | None,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> None:
    """RMSprop step: the gradient divided by its running root mean square."""
    grad = grad + weight_decay * param if weight_decay else grad
    square_avg.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
    variance = square_avg
    if centered and grad_avg is not None:
        grad_avg.lerp_(grad, 1 - alpha)
        variance = square_avg - grad_avg.square()
    step = grad / (variance.sqrt() + eps)
    if momentum > 0 and momentum_buf is not None:
        step = momentum_buf.mul_(momentum).add_(step)
    param.sub_(lr * step)


def clip_grad_norm(
    grads: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> float:
    """Scale the gradients to a joint norm of at most `max_norm`; return the norm before."""
    norms = [torch.linalg.vector_norm(grad, norm_type) for grad in grads]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(f"the norm of order {norm_type} of the gradients is {total.item()}")
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale)
    return float(total)


# fmt: off
MOMENTS = "param exp_avg exp_avg_sq max_exp_avg_sq"
WRITTEN: dict[Callable[..., Any], str] = {
    sgd: "param grad buf",
    adam: MOMENTS,
    adamw: MOMENTS,
    adadelta: "param square_avg acc_delta",
    rmsprop: "param square_avg grad_avg momentum_buf",
    clip_grad_norm: "grads",
}
for function, written in WRITTEN.items():
    op(function.__name__, FAMILY, kind="composite", dtypes=FLOATS, meaning=function,
       written=written, opinfo="")
for name in "adam adamw sgd adagrad".split():
    op(f"fused_{name}", FAMILY, aten=f"_fused_{name}_", kind="composite", dtypes=FLOATS, opinfo="")
