# SPDX-License-Identifier: Apache-2.0
"""Convolution, its gradient, and the conversion between images and patches."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.op import COMPLEX, FLOATS, op

FAMILY = "convolution"
SAMPLES = " ".join(
    f"nn.functional.conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)
)


def convolution_backward_overrideable(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """convolution_backward for a device outside of torch: without `bias_sizes`."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        grad_output,
        input,
        weight,
        [channels],
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
    return found


# fmt: off
op("convolution", FAMILY, aten="convolution convolution_overrideable", kind="contraction",
   dtypes=(*FLOATS, *COMPLEX), backward="convolution_backward", opinfo=SAMPLES)
op("convolution_backward", FAMILY, kind="contraction", dtypes=FLOATS, opinfo=SAMPLES)
op("convolution_backward_overrideable", FAMILY, aten="convolution_backward_overrideable",
   kind="contraction", dtypes=FLOATS, meaning=convolution_backward_overrideable, opinfo=SAMPLES)
op("im2col", FAMILY, kind="exact", dtypes=FLOATS, backward="col2im", opinfo="nn.functional.unfold")
op("col2im", FAMILY, kind="reduction", dtypes=FLOATS, backward="im2col", opinfo="")
