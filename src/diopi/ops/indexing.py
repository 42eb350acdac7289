# SPDX-License-Identifier: Apache-2.0
"""Reading and writing selected elements: index, gather, scatter, masks, embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.op import ALL, FLOATS, INTS, NUMBERS, op

FAMILY = "indexing"


def index_backward(
    grad_output: Tensor, zeros_like_input: Tensor, indices: list[Tensor | None]
) -> Tensor:
    """Add each gradient to the element that index() selected."""
    found: Tensor = torch.ops.aten.index_put(zeros_like_input, indices, grad_output, True)
    return found


def index_put(
    input: Tensor,
    indices: list[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """Return a copy of the input with `values` at `indices`, or added there."""
    del unsafe  # skips the check of the bounds in torch's own kernel
    found: Tensor = torch.ops.aten.index_put(input, indices, values, accumulate)
    return found


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str | None = None
) -> Tensor:
    """Return a copy of the input with `src` at `index`; `reduce`: None, "add" or "multiply"."""
    more = {"reduce": reduce} if reduce else {}
    return torch.scatter(input, dim, index, src, **more)  # type: ignore[call-overload, no-any-return]


def scatter_value(
    input: Tensor, dim: int, index: Tensor, value: float, *, reduce: str | None = None
) -> Tensor:
    """Return a copy of the input with one value at `index`; `reduce`: None, "add" or "multiply"."""
    more = {"reduce": reduce} if reduce else {}
    return torch.scatter(input, dim, index, value, **more)  # type: ignore[call-overload, no-any-return]


# fmt: off
op("index", FAMILY, aten="index.Tensor", kind="exact", dtypes=ALL, backward="index_backward",
   opinfo="__getitem__")
op("index_backward", FAMILY, kind="reduction", dtypes=FLOATS, meaning=index_backward,
   opinfo="__getitem__")
op("index_put", FAMILY, aten="index_put _index_put_impl", kind="reduction", dtypes=ALL,
   text="index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, "
   "bool unsafe=False) -> Tensor", meaning=index_put)
op("index_select", FAMILY, kind="exact", dtypes=ALL, backward="index_select_backward")
op("index_select_backward", FAMILY, kind="reduction", dtypes=FLOATS, opinfo="index_select")
op("index_add", FAMILY, kind="reduction", dtypes=NUMBERS)
op("index_copy", FAMILY, kind="exact", dtypes=ALL)
op("index_fill", FAMILY, aten="index_fill.int_Tensor index_fill.int_Scalar", kind="exact",
   dtypes=ALL)
op("index_reduce", FAMILY, kind="composite", dtypes=(*FLOATS, *INTS),
   opinfo="index_reduce.prod index_reduce.mean index_reduce.amax index_reduce.amin")

op("gather", FAMILY, kind="exact", dtypes=ALL, backward="gather_backward")
op("gather_backward", FAMILY, kind="reduction", dtypes=FLOATS, opinfo="gather")
op("scatter", FAMILY, aten="scatter.src scatter.reduce", kind="elementwise", dtypes=ALL,
   text="scatter(Tensor self, int dim, Tensor index, Tensor src, *, str? reduce=None) -> Tensor",
   meaning=scatter)
op("scatter_value", FAMILY, aten="scatter.value scatter.value_reduce", kind="elementwise",
   dtypes=ALL, meaning=scatter_value, opinfo="scatter",
   text="scatter_value(Tensor self, int dim, Tensor index, Scalar value, *, str? reduce=None) "
   "-> Tensor")
op("scatter_add", FAMILY, kind="reduction", dtypes=NUMBERS)
op("scatter_reduce", FAMILY, aten="scatter_reduce.two", kind="composite", dtypes=(*FLOATS, *INTS),
   opinfo="scatter_reduce.sum scatter_reduce.mean scatter_reduce.amax scatter_reduce.amin "
   "scatter_reduce.prod")
op("take", FAMILY, kind="exact", dtypes=ALL)
op("take_along_dim", FAMILY, kind="exact", dtypes=ALL)
op("put", FAMILY, kind="reduction", dtypes=ALL)

op("masked_fill", FAMILY, aten="masked_fill.Tensor masked_fill.Scalar", kind="exact", dtypes=ALL)
op("masked_select", FAMILY, kind="exact", dtypes=ALL, backward="masked_select_backward",
   dynamic=True)
op("masked_select_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo="masked_select")
op("masked_scatter", FAMILY, kind="exact", dtypes=ALL)
op("nonzero", FAMILY, kind="exact", dtypes=ALL, dynamic=True)

op("embedding", FAMILY, kind="exact", dtypes=FLOATS, backward="embedding_backward",
   opinfo="nn.functional.embedding")
op("embedding_backward", FAMILY, aten="embedding_dense_backward", kind="reduction", dtypes=FLOATS,
   opinfo="nn.functional.embedding")
op("embedding_bag", FAMILY, aten="_embedding_bag", kind="reduction", dtypes=FLOATS,
   opinfo="nn.functional.embedding_bag")
op("embedding_renorm", FAMILY, kind="composite", dtypes=FLOATS, opinfo="")
op("one_hot", FAMILY, kind="exact", dtypes=(torch.int64,), opinfo="nn.functional.one_hot")
