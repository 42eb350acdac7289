# SPDX-License-Identifier: Apache-2.0
"""Moving elements: joining, cutting, turning, repeating, padding, triangles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diopi.op import ALL, COMPLEX, FLOATS, NUMBERS, op

FAMILY = "shape"
NN = "nn.functional."


def meshgrid(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Repeat each vector over the grid of all: the first along the first dimension."""
    return list(torch.meshgrid(*tensors, indexing="ij"))


# fmt: off
PLAIN = "cat stack expand permute repeat roll flip tril triu diag diag_embed tile rot90"
for name in PLAIN.split():
    op(name, FAMILY, kind="exact", dtypes=ALL)
op("transpose", FAMILY, aten="transpose.int", kind="exact", dtypes=ALL)
op("split_with_sizes", FAMILY, kind="exact", dtypes=ALL)
op("split", FAMILY, aten="split.Tensor", kind="exact", dtypes=ALL)
op("chunk", FAMILY, kind="exact", dtypes=ALL)
op("unbind", FAMILY, aten="unbind.int", kind="exact", dtypes=ALL)
op("meshgrid", FAMILY, aten="meshgrid", kind="exact", dtypes=ALL, meaning=meshgrid,
   opinfo="meshgrid.list_of_tensors")
op("repeat_interleave", FAMILY, aten="repeat_interleave.self_int", kind="exact", dtypes=ALL)

op("select", FAMILY, aten="select.int", kind="exact", dtypes=ALL, backward="select_backward")
op("select_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo="select")
op("select_scatter", FAMILY, kind="exact", dtypes=ALL)
op("slice", FAMILY, aten="slice.Tensor", kind="exact", dtypes=ALL, backward="slice_backward")
op("slice_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo="slice")
op("slice_scatter", FAMILY, kind="exact", dtypes=ALL)
op("diagonal", FAMILY, kind="exact", dtypes=ALL, backward="diagonal_backward")
op("diagonal_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo="diagonal")
op("diagonal_scatter", FAMILY, kind="exact", dtypes=ALL)
op("unfold", FAMILY, kind="exact", dtypes=ALL, backward="unfold_backward")
op("unfold_backward", FAMILY, kind="reduction", dtypes=FLOATS, opinfo="unfold")

op("pad", FAMILY, kind="exact", dtypes=NUMBERS,
   opinfo=" ".join(f"{NN}pad.{mode}" for mode in "constant reflect replicate circular".split()),
   doc='`mode`: "constant", "reflect", "replicate" or "circular".')
op("constant_pad_nd", FAMILY, kind="exact", dtypes=ALL)
for n in (1, 2, 3):
    for mode, entry in (("reflection", "reflect"), ("replication", "replicate")):
        op(f"{mode}_pad{n}d", FAMILY, kind="exact", dtypes=(*FLOATS, *COMPLEX),
           backward=f"{mode}_pad{n}d_backward", opinfo=f"{NN}pad.{entry}")
        op(f"{mode}_pad{n}d_backward", FAMILY, kind="reduction", dtypes=FLOATS,
           opinfo=f"{NN}pad.{entry}")
op("pixel_shuffle", FAMILY, kind="exact", dtypes=ALL, opinfo=NN + "pixel_shuffle")
op("pixel_unshuffle", FAMILY, kind="exact", dtypes=ALL, opinfo=NN + "pixel_unshuffle")

op("real", FAMILY, kind="exact", dtypes=COMPLEX)
op("imag", FAMILY, kind="exact", dtypes=COMPLEX)
op("conj", FAMILY, kind="exact", dtypes=ALL)
op("view_as_real", FAMILY, kind="exact", dtypes=COMPLEX)
op("view_as_complex", FAMILY, kind="exact", dtypes=FLOATS[:3])
