# SPDX-License-Identifier: Apache-2.0
"""Gradients by autograd, as the meaning of backward ops that ATen lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients(
    function: Callable[..., Any],
    inputs: Sequence[Tensor | None],
    grads: Tensor | Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `function(*inputs)` for every input that is a floating tensor."""
    with torch.enable_grad():
        leaves = [_leaf(value) for value in inputs]
        results = function(*leaves)
        results = (results,) if isinstance(results, Tensor) else tuple(results)
        grads = (grads,) if isinstance(grads, Tensor) else tuple(grads)
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(
            torch.autograd.grad(results[: len(grads)], wanted, grads, materialize_grads=True)
        )
    return tuple(
        next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves
    )


def gradient(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Tensor | Sequence[Tensor]
) -> Tensor:
    """Return the gradient of the first input."""
    found = gradients(function, inputs, grads)[0]
    assert found is not None  # the first input of every such op is floating
    return found


def _leaf(value: Tensor | None) -> Tensor | None:
    if value is None:
        return None
    floating = value.is_floating_point() or value.is_complex()
    return value.detach().clone().requires_grad_(floating)
