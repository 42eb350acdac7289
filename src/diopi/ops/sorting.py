# SPDX-License-Identifier: Apache-2.0
"""Order: sort, topk, unique, search, counts."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.op import BOOL, FLOATS, INTS, REALS, op

FAMILY = "sorting"


def sort(
    input: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Return values and their indices; equal values keep their order only when `stable`."""
    found: tuple[Tensor, Tensor] = torch.ops.aten.sort.stable(
        input, stable=stable, dim=dim, descending=descending
    )
    return found


def argsort(
    input: Tensor, *, stable: bool = False, dim: int | None = -1, descending: bool = False
) -> Tensor:
    """Return the indices that sort the input; `dim` None means the flattened input."""
    if dim is None:
        return torch.argsort(input.flatten(), dim=0, descending=descending, stable=stable)
    return torch.argsort(input, dim=dim, descending=descending, stable=stable)


def unique(
    input: Tensor, dim: int | None, sorted: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return distinct elements, or slices along `dim`;
    each element's index among them; counts on request.
    """
    if dim is None:
        out, inverse, counts = torch.ops.aten._unique2(input, sorted, True, True)
    else:
        out, inverse, counts = torch.ops.aten.unique_dim(input, dim, sorted, True, True)
    return out, inverse, counts if return_counts else None


# fmt: off
op("sort", FAMILY, aten="sort.stable sort", kind="index", dtypes=(*REALS, *BOOL), meaning=sort,
   text="sort(Tensor self, *, bool? stable=None, int dim=-1, bool descending=False) "
   "-> (Tensor values, Tensor indices)", backward="sort_backward")
op("sort_backward", FAMILY, aten="value_selecting_reduction_backward", kind="exact", dtypes=FLOATS,
   opinfo="sort")
op("argsort", FAMILY, aten="argsort.stable argsort", kind="index", dtypes=(*REALS, *BOOL),
   meaning=argsort,
   text="argsort(Tensor self, *, bool stable=False, int? dim=-1, bool descending=False) -> Tensor")
op("topk", FAMILY, kind="index", dtypes=REALS, backward="sort_backward")
op("kthvalue", FAMILY, kind="index", dtypes=REALS)
op("median", FAMILY, aten="median.dim", kind="index", dtypes=REALS)
op("median_all", FAMILY, aten="median", kind="exact", dtypes=REALS, opinfo="median")
op("nanmedian", FAMILY, aten="nanmedian.dim", kind="index", dtypes=REALS)
op("mode", FAMILY, kind="index", dtypes=(*REALS, *BOOL))

op("unique", FAMILY, kind="exact", dtypes=(*REALS, *BOOL), meaning=unique,
   results="out indices counts", dynamic=True)
op("unique2", FAMILY, aten="_unique2", kind="exact", dtypes=(*REALS, *BOOL), opinfo="unique",
   dynamic=True)
op("unique_dim", FAMILY, kind="exact", dtypes=(*REALS, *BOOL), opinfo="unique", dynamic=True)
op("unique_consecutive", FAMILY, kind="exact", dtypes=(*REALS, *BOOL), dynamic=True)
op("searchsorted", FAMILY, aten="searchsorted.Tensor searchsorted.Scalar", kind="exact",
   dtypes=REALS)
op("bucketize", FAMILY, aten="bucketize.Tensor", kind="exact", dtypes=REALS)
op("bincount", FAMILY, kind="exact", dtypes=INTS, dynamic=True)
op("histc", FAMILY, kind="exact", dtypes=(torch.float32, torch.float64))
op("isin", FAMILY, aten="isin.Tensor_Tensor", kind="exact", dtypes=REALS)
