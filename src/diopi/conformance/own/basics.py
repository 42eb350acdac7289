# SPDX-License-Identifier: Apache-2.0
"""Samples of small ops that op_db lacks or reaches by another name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from diopi.conformance.cases.sample import Sample
from diopi.conformance.own.making import called, draw, makes, positive, whole

ROWS = ((7,), (3, 129), (2, 5, 33), (4, 1031))


@makes("clamp_min", "clamp_max")
def _clamp(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        yield Sample((draw(dtype, *shape), 1))


@makes("safe_softmax")
def _safe_softmax(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        scores = draw(dtype, *shape)
        yield Sample((scores, -1))
        scores[0] = -torch.inf
        yield Sample((scores, -1))


@makes("max_all", "min_all", "zero", "get_native_memory_format")
@makes("real", "imag", "conj", "view_as_real")
def _alone(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        yield Sample((draw(dtype, *shape),))


@makes("native_memory_format_cast")
def _native_format(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS:
        yield called(input=draw(dtype, *shape), format=0)


@makes("nonzero")
def _nonzero(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in (*ROWS, (0, 3), ()):
        yield Sample((draw(dtype, *shape) * (torch.rand(shape) < 0.5).to(dtype),))


@makes("tensor_destruction_hook")
def _hook(dtype: torch.dtype) -> Iterator[Sample]:
    del dtype
    yield called(ptr=0)


@makes("where")
def _where(dtype: torch.dtype) -> Iterator[Sample]:
    sizes = (((33, 1), (33, 65), (65,)), ((65,), (33, 1), (1, 65)), ((3, 1, 5), (5,), (3, 7, 1)))
    for condition, one, other in sizes:
        flags = torch.rand(condition) < 0.5
        yield Sample((flags, draw(dtype, *one), draw(dtype, *other)))


@makes("copy")
def _copy(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, (other, source) in product(ROWS, ((dtype, -1), (torch.float32, -1), (dtype, 1))):
        src = draw(other, *(shape if source < 0 else shape[-1:]))  # of equal shape, or broadcast
        yield Sample((draw(dtype, *shape), src))


@makes("to_copy")
def _to_copy(dtype: torch.dtype) -> Iterator[Sample]:
    wanted = (torch.float32, torch.bfloat16, torch.float16, torch.float64, None)
    for shape, other in product(ROWS[:2], wanted):
        yield Sample((draw(dtype, *shape),), {"dtype": other})


@makes("meshgrid")
def _meshgrid(dtype: torch.dtype) -> Iterator[Sample]:
    for sizes in ((3,), (3, 5), (2, 1, 33)):
        yield Sample(([draw(dtype, size) for size in sizes],))


@makes("bitwise_not")
def _bitwise_not(dtype: torch.dtype) -> Iterator[Sample]:
    yield from _alone(dtype)


@makes("cumsum_backward")
def _cumsum_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim in product(ROWS, (0, -1)):
        yield called(grad_output=draw(dtype, *shape), dim=dim)


NORMS: tuple[tuple[Any, list[int], bool], ...] = (
    (2, [], False), (2, [-1], False), (1, [0], True), (3, [-1], False), (None, [-1], True),
)  # fmt: skip


@makes("norm")
def _norm(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, (p, dim, keepdim) in product(ROWS[:3], NORMS):
        yield called(input=draw(dtype, *shape), p=p, dim=dim, keepdim=keepdim)


@makes("norm_backward", fixed=True)
def _norm_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, (p, dim, keepdim) in product(ROWS[:3], NORMS):
        if p is not None:
            input = draw(dtype, *shape)
            norm = torch.linalg.vector_norm(input, p, dim or None, keepdim)
            yield called(grad_output=torch.randn_like(norm), input=input, norm=norm, dim=dim, p=p)


# --- positions -----------------------------------------------------------------------------------


@makes("index_backward", fixed=True)
def _index_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, count in (((5, 3), 4), ((33, 129), 65), ((7,), 0)):
        grad = draw(dtype, count, *shape[1:])
        zeros = torch.zeros(shape, dtype=dtype)
        yield called(grad_output=grad, zeros_like_input=zeros, indices=[whole(shape[0], count)])
    grad, zeros = draw(dtype, 5, 4), torch.zeros(5, 3, dtype=dtype)
    yield called(grad_output=grad, zeros_like_input=zeros, indices=[None, whole(3, 4)])


@makes("index_select_backward", fixed=True)
def _index_select_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for rows, columns, count in ((5, 3, 4), (33, 129, 65)):
        yield called(
            grad=draw(dtype, count, columns),
            self_sizes=[rows, columns],
            dim=0,
            index=whole(rows, count),
        )


@makes("gather_backward", fixed=True)
def _gather_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim in (((3, 4), 0), ((17, 129), 1)):
        index = whole(shape[dim], *shape)
        given = {"grad": draw(dtype, *shape), "input": draw(dtype, *shape)}
        yield called(**given, dim=dim, index=index, sparse_grad=False)


@makes("masked_select_backward", fixed=True)
def _masked_select_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ROWS[:3]:
        mask = torch.rand(shape) < 0.5
        grad = draw(dtype, int(mask.sum()))
        yield called(grad=grad, input=draw(dtype, *shape), mask=mask)


@makes("embedding_renorm", fixed=True)
def _embedding_renorm(dtype: torch.dtype) -> Iterator[Sample]:
    for rows, size, count, order in ((5, 3, 4, 2.0), (33, 129, 17, 1.0)):
        weights = draw(dtype, rows, size)
        yield called(input=weights, indices=whole(rows, count), max_norm=1.0, norm_type=order)


@makes("one_hot", fixed=True)
def _one_hot(dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ((5,), (3, 33), (0,)):
        yield called(input=whole(7, *shape).to(dtype), num_classes=9)


@makes("bincount", fixed=True)
def _bincount(dtype: torch.dtype) -> Iterator[Sample]:
    for count, least in ((5, 0), (1031, 12), (0, 3)):
        values = whole(9, count).to(dtype)
        yield called(input=values, weights=None, minlength=least)
        yield called(input=values, weights=positive(torch.float64, count), minlength=least)


@makes("unique", fixed=True)
def _unique(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim, counted in (((9,), None, True), ((3, 129), None, False), ((17, 2), 0, True)):
        values = whole(2 if dtype == torch.bool else 3, *shape).to(dtype)
        yield called(input=values, dim=dim, sorted=True, return_counts=counted)


@makes("sort_backward", fixed=True)
def _sort_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim in (((3, 4), 1), ((129, 5), 0)):
        indices = draw(torch.float64, *shape).argsort(dim)
        grad = draw(dtype, *shape)
        yield called(grad=grad, dim=dim, indices=indices, sizes=list(shape), keepdim=True)


@makes("tril_indices", "triu_indices")
def _triangle(dtype: torch.dtype) -> Iterator[Sample]:
    for row, col, offset in ((3, 4, 0), (33, 17, -2), (5, 5, 3), (0, 4, 0)):
        yield called(row=row, col=col, offset=offset, dtype=dtype)


# --- products ------------------------------------------------------------------------------------


@makes("matmul_backward", fixed=True)
def _matmul_backward(dtype: torch.dtype) -> Iterator[Sample]:
    shapes = (((3, 4), (4, 5)), ((2, 3, 65), (65, 7)), ((2, 5, 9), (2, 9, 33)))
    for (left, right), mask in product(shapes, ([True, True], [True, False])):
        input, other = draw(dtype, *left), draw(dtype, *right)
        grad = torch.randn_like(input @ other)
        yield called(grad=grad, input=input, other=other, mask=mask)


@makes("linear_backward", fixed=True)
def _linear_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for rows, inner, outer in (((3,), 4, 5), ((2, 17), 129, 33), ((0,), 4, 5)):
        for mask in ([True] * 3, [True, False, True]):
            yield called(
                input=draw(dtype, *rows, inner),
                grad_output=draw(dtype, *rows, outer),
                weight=draw(dtype, outer, inner),
                output_mask=mask,
            )


@makes("convolution_backward_overrideable", fixed=True)
def _convolution_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, out, size, (stride, padding, groups) in (
        ((2, 3, 6, 6), 4, 3, (1, 0, 1)),
        ((1, 4, 9, 7), 6, 3, (2, 1, 2)),
    ):
        input, weight = draw(dtype, *shape), draw(dtype, out, shape[1] // groups, size, size)
        how = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1] * 2}
        grad = torch.randn_like(torch.conv2d(input, weight, None, *how.values(), groups))  # type: ignore[call-overload]
        more = {"transposed": False, "output_padding": [0, 0], "groups": groups}
        yield called(
            grad_output=grad, input=input, weight=weight, **how, **more, output_mask=[True] * 3
        )


def _matrix(dtype: torch.dtype, size: int) -> torch.Tensor:
    """Create a lower triangular matrix of low condition number."""
    return (draw(dtype, size, size) * 0.1).tril() + 2 * torch.eye(size, dtype=dtype)


@makes("cholesky_backward", fixed=True)
def _cholesky_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for size, upper in product((1, 3, 17), (False, True)):
        factor, grad = _matrix(dtype, size), draw(dtype, size, size).tril()
        if upper:
            factor, grad = factor.mT.contiguous(), grad.mT.contiguous()
        yield called(grad_output=grad, L=factor, upper=upper)


@makes("triangular_solve_backward", fixed=True)
def _triangular_solve_backward(dtype: torch.dtype) -> Iterator[Sample]:
    for size, upper, transpose in product((4, 17), (False, True), (False, True)):
        lower = _matrix(dtype, size)
        matrix, b = lower.mT.contiguous() if upper else lower, draw(dtype, size, 2)
        how = {"upper": upper, "transpose": transpose, "unitriangular": False}
        x, _ = torch.triangular_solve(b, matrix, upper=upper, transpose=transpose)
        yield called(grad_x=torch.randn_like(x), grad_cloned_mat=None, x=x, b=b, mat=matrix, **how)


# --- lists ---------------------------------------------------------------------------------------


@makes(*(f"foreach_{name}_tensor" for name in ("add", "mul", "div")))
def _lists(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes in (((3,), (2, 5)), ((1031,), (), (0,))):
        other = torch.tensor(3).to(dtype)
        yield Sample(([draw(dtype, *shape) for shape in shapes], other))


@makes("foreach_addcmul_tensor", "foreach_addcdiv_tensor")
def _pointwise_lists(dtype: torch.dtype) -> Iterator[Sample]:
    for shapes in (((3,), (2, 5)), ((1031,), (), (0,))):
        lists = [[positive(dtype, *shape) for shape in shapes] for _ in range(3)]
        yield Sample((*lists, positive(torch.float32, len(shapes))))


@makes("fft_c2c")
def _c2c(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim, forward in (((8,), [0], True), ((3, 33), [1], False), ((4, 6), [0, 1], True)):
        yield called(input=draw(dtype, *shape), dim=dim, normalization=0, forward=forward)


@makes("fft_c2r", fixed=True)
def _c2r(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dim, size in (((5,), [0], 8), ((3, 17), [1], 33)):
        yield called(input=draw(dtype, *shape), dim=dim, normalization=2, last_dim_size=size)
