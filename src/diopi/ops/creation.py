# SPDX-License-Identifier: Apache-2.0
"""New tensors, copies and casts."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.op import ALL, FLOATS, REALS, op

FAMILY = "creation"


def native_memory_format_cast(input: Tensor, format: int) -> Tensor:
    """Convert to a vendor's own layout; the reference has none and returns a copy."""
    del format
    return input.clone()


def get_native_memory_format(input: Tensor) -> int:
    """Return the number of a vendor's own layout; the reference has only the plain one, 0."""
    del input
    return 0


def tensor_destruction_hook(ptr: int) -> None:
    """Called before a tensor's memory is released; the reference does nothing."""
    del ptr


# fmt: off
op("arange", FAMILY, aten="arange.start_step arange.start", kind="elementwise", dtypes=REALS)
op("arange_end", FAMILY, aten="arange", kind="elementwise", dtypes=REALS, opinfo="arange")
op("linspace", FAMILY, kind="elementwise", dtypes=REALS)
op("logspace", FAMILY, kind="transcendental", dtypes=FLOATS[:2])
for name in "zeros ones full eye zeros_like ones_like full_like".split():
    op(name, FAMILY, kind="exact", dtypes=ALL)
for name in "new_zeros new_ones new_full".split():
    op(name, FAMILY, kind="exact", dtypes=ALL)
op("scalar_tensor", FAMILY, kind="exact", dtypes=ALL)
op("item", FAMILY, aten="_local_scalar_dense", kind="exact", dtypes=ALL)
op("fill", FAMILY, aten="fill.Tensor fill.Scalar", kind="exact", dtypes=ALL)
op("zero", FAMILY, kind="exact", dtypes=ALL, opinfo="")
op("copy", FAMILY, kind="exact", dtypes=ALL, opinfo="")
op("clone", FAMILY, kind="exact", dtypes=ALL)
op("to_copy", FAMILY, aten="_to_copy", kind="exact", dtypes=ALL, opinfo="")
op("tril_indices", FAMILY, kind="exact", dtypes=(torch.int64, torch.int32))
op("triu_indices", FAMILY, kind="exact", dtypes=(torch.int64, torch.int32))
op("native_memory_format_cast", FAMILY, kind="exact", dtypes=ALL, opinfo="",
   meaning=native_memory_format_cast)
op("get_native_memory_format", FAMILY, kind="exact", dtypes=ALL, opinfo="",
   meaning=get_native_memory_format)
op("tensor_destruction_hook", FAMILY, kind="exact", dtypes=ALL, opinfo="",
   meaning=tensor_destruction_hook)
