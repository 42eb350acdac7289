# SPDX-License-Identifier: Apache-2.0
"""Many elements to one: sums, norms, extremes, scans, distances."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diopi.gradient import gradient
from diopi.op import ALL, BOOL, COMPLEX, FLOATS, NUMBERS, REALS, op

FAMILY = "reduction"
FLOATING = (*FLOATS, *COMPLEX)


def over(name: str) -> Callable[..., Tensor]:
    """prod, any, all: over one dimension, or over everything when it is None."""

    def meaning(
        input: Tensor, dim: int | None = None, keepdim: bool = False, **more: object
    ) -> Tensor:
        function = getattr(torch, name)
        result: Tensor = (
            function(input, **more) if dim is None else function(input, dim, keepdim, **more)
        )
        return result.reshape([1] * input.dim()) if dim is None and keepdim else result

    return meaning


def cumsum_backward(grad_output: Tensor, dim: int) -> Tensor:
    """Return the sum of all gradients from each position on."""
    return grad_output.flip(dim).cumsum(dim).flip(dim)


def norm_backward(
    grad_output: Tensor, input: Tensor, norm: Tensor, dim: list[int], p: int | float
) -> Tensor:
    """Return the gradient of norm(input, p, dim)."""
    del norm  # a kernel may use it; the value follows from the input
    keepdim = grad_output.dim() == input.dim()
    return gradient(
        lambda x: torch.linalg.vector_norm(x, p, dim or None, keepdim), (input,), grad_output
    )


# fmt: off
op("sum", FAMILY, aten="sum.dim_IntList sum", kind="reduction", dtypes=ALL,
   text="sum.dim_IntList(Tensor self, int[1]? dim=None, bool keepdim=False, *, "
   "ScalarType? dtype=None) -> Tensor")
op("mean", FAMILY, aten="mean.dim mean", kind="reduction", dtypes=FLOATING,
   text="mean.dim(Tensor self, int[1]? dim=None, bool keepdim=False, *, "
   "ScalarType? dtype=None) -> Tensor")
op("nansum", FAMILY, kind="reduction", dtypes=REALS)
op("prod", FAMILY, aten="prod.dim_int prod", kind="composite", dtypes=ALL, meaning=over("prod"),
   text="prod(Tensor self, int? dim=None, bool keepdim=False, *, ScalarType? dtype=None) "
   "-> Tensor")
for name in "any all".split():
    op(name, FAMILY, aten=f"{name}.dim {name}", kind="exact", dtypes=ALL, meaning=over(name),
       text=f"{name}(Tensor self, int? dim=None, bool keepdim=False) -> Tensor")
for name in "std var".split():
    op(name, FAMILY, aten=f"{name}.correction", kind="composite", dtypes=FLOATS,
       opinfo=f"{name} {name}.unbiased")
    op(f"{name}_mean", FAMILY, aten=f"{name}_mean.correction", kind="composite", dtypes=FLOATS,
       opinfo=f"{name}_mean")
for name in "max min".split():
    op(name, FAMILY, aten=f"{name}.dim", kind="index", dtypes=(*REALS, *BOOL),
       opinfo=f"{name}.reduction_with_dim")
    op(f"{name}_all", FAMILY, aten=name, kind="exact", dtypes=(*REALS, *BOOL),
       opinfo=f"{name}.reduction_no_dim")
    op(f"a{name}", FAMILY, kind="exact", dtypes=(*REALS, *BOOL))
    op(f"arg{name}", FAMILY, kind="index", dtypes=REALS)
    op(f"cum{name}", FAMILY, kind="index", dtypes=(*REALS, *BOOL))
op("aminmax", FAMILY, kind="exact", dtypes=(*REALS, *BOOL))
op("logsumexp", FAMILY, kind="composite", dtypes=FLOATS)
op("count_nonzero", FAMILY, aten="count_nonzero.dim_IntList", kind="exact", dtypes=ALL)

op("cumsum", FAMILY, kind="reduction", dtypes=NUMBERS, backward="cumsum_backward")
op("cumsum_backward", FAMILY, kind="reduction", dtypes=FLOATING, meaning=cumsum_backward,
   opinfo="cumsum")
op("cumprod", FAMILY, kind="composite", dtypes=NUMBERS)
op("logcumsumexp", FAMILY, kind="composite", dtypes=FLOATS)
op("trace", FAMILY, kind="reduction", dtypes=NUMBERS)

op("norm", FAMILY, aten="norm.ScalarOpt_dim", kind="composite", dtypes=FLOATING,
   backward="norm_backward", opinfo="norm")
op("norm_backward", FAMILY, kind="composite", dtypes=FLOATS, meaning=norm_backward, opinfo="norm")
op("linalg_vector_norm", FAMILY, kind="composite", dtypes=FLOATING, opinfo="linalg.vector_norm")
op("renorm", FAMILY, kind="composite", dtypes=FLOATING)
op("dist", FAMILY, kind="composite", dtypes=FLOATING)
op("cdist", FAMILY, aten="_cdist_forward", kind="composite", dtypes=FLOATS[:2],
   backward="cdist_backward")
op("pdist", FAMILY, aten="_pdist_forward", kind="composite", dtypes=FLOATS[:2],
   backward="pdist_backward", opinfo="nn.functional.pdist")
op("pdist_backward", FAMILY, aten="_pdist_backward", kind="composite", dtypes=FLOATS[:2],
   opinfo="nn.functional.pdist")
op("cdist_backward", FAMILY, aten="_cdist_backward", kind="composite", dtypes=FLOATS[:2],
   opinfo="cdist")
