# SPDX-License-Identifier: Apache-2.0
"""Decompositions that torch lacks, or has with errors for some arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

# Replacements of torch's incorrect decompositions.


def _diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Scatter to a diagonal. Torch's decomposition keeps the strides of an expanded input, and so
    writes all of its rows at once.
    """
    result = input.clone()
    diagonal = result.diagonal(offset, dim1, dim2)
    if diagonal.shape != src.shape:
        raise RuntimeError(
            f"diagonal_scatter: the diagonal is {list(diagonal.shape)}, src {list(src.shape)}"
        )
    diagonal.copy_(src)
    return result


def _index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Add rows by index. Torch's decomposition accepts a source of
    another shape, as if expanded.
    """
    wanted = [*input.shape]
    if input.dim():
        wanted[dim] = index.numel()
        if wanted != [*source.shape]:
            raise RuntimeError(f"index_add: source is {list(source.shape)}, not {wanted}")
    known = torch._decomp.decomposition_table[torch.ops.aten.index_add.default]
    result: Tensor = known(input, dim, index, source, alpha=alpha)
    return result


def _hardswish_backward(grad_output: Tensor, input: Tensor) -> Tensor:
    """The gradient of hardswish. Torch's decomposition loses a NaN of the input."""
    inside = torch.where(input > 3, grad_output, grad_output * (input / 3 + 0.5))
    return torch.where(input < -3, 0.0, inside)


# Decompositions that torch lacks.


def _shrink_backward(grad_output: Tensor, input: Tensor, lambd: float) -> Tensor:
    outside = torch.bitwise_or(input > lambd, input < -lambd)
    return torch.where(outside, grad_output, torch.zeros_like(grad_output))


def _passing_over_nan(choose: Callable[..., Tensor], input: Tensor, other: Tensor) -> Tensor:
    """Implement fmax and fmin: return the other operand where one is NaN."""
    best = choose(input, other)
    return torch.where(input != input, other, torch.where(other != other, input, best))


def _addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.bmm(batch1, batch2).sum(0)
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # whatever the input contains, NaN too
        return product
    return product + (input if beta == 1 else input * beta)


def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if index.numel() != source.numel():
        raise RuntimeError(f"put: {index.numel()} indices for {source.numel()} values")
    flat = input.reshape(-1)
    made = torch.index_put(flat, (index.reshape(-1),), source.reshape(-1), accumulate)
    return made.reshape(input.shape)


def _replication_pad_backward(grad_output: Tensor, input: Tensor, padding: Sequence[int]) -> Tensor:
    """Accumulate each dimension separately:
    all gradients of copies of an element are added to it.
    """
    grad = grad_output
    for place in range(len(padding) // 2):
        dim, before = input.dim() - 1 - place, padding[2 * place]
        size = input.shape[dim]
        source = torch.arange(grad.shape[dim], device=grad.device) - before
        source = torch.where(source < 0, torch.zeros_like(source), source)
        last = torch.full_like(source, size - 1)
        shape = [*grad.shape[:dim], size, *grad.shape[dim + 1 :]]
        source = torch.where(source > last, last, source)
        grad = grad.new_zeros(shape).index_add(dim, source, grad)
    return grad


def _triangular_solve(
    b: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    matrix = A.mT if transpose else A
    solved = torch.linalg.solve_triangular(
        matrix, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return solved, A.clone()


aten = torch.ops.aten
COMPOSED: dict[OpOverload, Callable[..., Any]] = {
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.index_add.default: _index_add,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.fmax.default: partial(_passing_over_nan, torch.maximum),
    aten.fmin.default: partial(_passing_over_nan, torch.minimum),
    aten.addbmm.default: _addbmm,
    aten.put.default: _put,
    aten.replication_pad1d_backward.default: _replication_pad_backward,
    aten.replication_pad2d_backward.default: _replication_pad_backward,
    aten.replication_pad3d_backward.default: _replication_pad_backward,
    aten.triangular_solve.default: _triangular_solve,
}
