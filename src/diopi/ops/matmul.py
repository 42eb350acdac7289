# SPDX-License-Identifier: Apache-2.0
"""Products of matrices and vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.gradient import gradients
from diopi.op import COMPLEX, FLOATS, NUMBERS, op

FAMILY = "matmul"
FLOATING = (*FLOATS, *COMPLEX)


def linear_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of linear for input, weight and bias; None where masked out."""
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    return (
        grad_output @ weight if output_mask[0] else None,
        rows.t() @ input.reshape(-1, input.shape[-1]) if output_mask[1] else None,
        rows.sum(0) if output_mask[2] else None,
    )


def matmul_backward(
    grad: Tensor, input: Tensor, other: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of matmul for both factors; None where masked out."""
    found = gradients(torch.matmul, (input, other), grad)
    return found[0] if mask[0] else None, found[1] if mask[1] else None


# fmt: off
for name in "mm bmm".split():
    op(name, FAMILY, kind="contraction", dtypes=NUMBERS)
op("matmul", FAMILY, kind="contraction", dtypes=NUMBERS, backward="matmul_backward")
op("matmul_backward", FAMILY, aten="matmul_backward", kind="contraction", dtypes=FLOATING,
   meaning=matmul_backward, opinfo="matmul")
op("linear", FAMILY, kind="contraction", dtypes=FLOATING, backward="linear_backward",
   opinfo="nn.functional.linear")
op("linear_backward", FAMILY, aten="linear_backward", kind="contraction", dtypes=FLOATING,
   meaning=linear_backward, opinfo="nn.functional.linear")
for name in "mv dot vdot".split():
    op(name, FAMILY, kind="contraction", dtypes=NUMBERS)
op("outer", FAMILY, kind="elementwise", dtypes=NUMBERS)
for name in "addmm addbmm baddbmm addmv addr".split():
    op(name, FAMILY, kind="contraction", dtypes=NUMBERS)
op("kron", FAMILY, kind="elementwise", dtypes=NUMBERS)
op("cross", FAMILY, aten="linalg_cross", kind="composite", dtypes=NUMBERS, opinfo="linalg.cross")
op("scaled_dot_product_attention", FAMILY, kind="composite", dtypes=FLOATS,
   opinfo="nn.functional.scaled_dot_product_attention")
