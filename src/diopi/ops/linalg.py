# SPDX-License-Identifier: Apache-2.0
"""Decompositions and solvers, judged by their residuals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diopi.gradient import gradient, gradients
from diopi.op import COMPLEX, WIDE_FLOATS, op

FAMILY = "linalg"
DTYPES = (*WIDE_FLOATS, *COMPLEX)


def cholesky_backward(grad_output: Tensor, L: Tensor, upper: bool) -> Tensor:
    """Return the gradient of linalg_cholesky_ex for its matrix, from the factor alone."""
    matrix = L.mH @ L if upper else L @ L.mH
    return gradient(lambda m: torch.linalg.cholesky(m, upper=upper), (matrix,), grad_output)


def triangular_solve_backward(
    grad_x: Tensor,
    grad_cloned_mat: Tensor | None,
    x: Tensor,
    b: Tensor,
    mat: Tensor,
    upper: bool,
    transpose: bool,
    unitriangular: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of triangular_solve for b and the matrix."""
    del x  # a kernel may use it
    grads = (grad_x,) if grad_cloned_mat is None else (grad_x, grad_cloned_mat)

    def solve(right: Tensor, matrix: Tensor) -> Any:
        side = matrix.mT if transpose else matrix
        solution = torch.linalg.solve_triangular(
            side, right, upper=upper is not transpose, unitriangular=unitriangular
        )
        return solution, matrix.clone()

    found = gradients(solve, (b, mat), grads)
    return found[0], found[1]


# fmt: off
op("cholesky", FAMILY, aten="linalg_cholesky_ex", kind="linalg", dtypes=DTYPES,
   backward="cholesky_backward", opinfo="linalg.cholesky_ex")
op("cholesky_backward", FAMILY, kind="linalg", dtypes=WIDE_FLOATS, meaning=cholesky_backward,
   opinfo="linalg.cholesky")
op("triangular_solve", FAMILY, kind="linalg", dtypes=DTYPES, backward="triangular_solve_backward")
op("triangular_solve_backward", FAMILY, kind="linalg", dtypes=WIDE_FLOATS,
   meaning=triangular_solve_backward, opinfo="triangular_solve", results="grad_b grad_mat")
op("linalg_qr", FAMILY, kind="linalg", dtypes=DTYPES, opinfo="linalg.qr")
OVERLOADS = {
    "linalg_solve_triangular": "linalg_solve_triangular",
    "linalg_inv_ex": "linalg_inv_ex",
    "linalg_lu_factor_ex": "linalg_lu_factor_ex",
    "linalg_solve_ex": "_linalg_solve_ex",
    "linalg_eigh": "_linalg_eigh",
    "linalg_slogdet": "_linalg_slogdet",
    "linalg_det": "_linalg_det",
    "linalg_svd": "_linalg_svd",
}
for name, overload in OVERLOADS.items():
    op(name, FAMILY, aten=overload, kind="linalg", dtypes=DTYPES,
       opinfo=name.replace("linalg_", "linalg."))
op("matrix_exp", FAMILY, aten="linalg_matrix_exp", kind="linalg", dtypes=DTYPES,
   opinfo="matrix_exp")
