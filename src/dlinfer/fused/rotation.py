# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.op import op


@op(
    "Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved=False",
    "(Tensor, Tensor)",
)
def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate q and k [tokens, heads, size] by the angles of each token; k may have fewer heads.

    cos and sin are [tokens, turned], a value for each element of the result; elements beyond
    `turned` are unchanged. Pairs are an element and the one half of `turned` further on; adjacent
    elements when `interleaved`.
    """
    return _turned(q, cos, sin, interleaved), _turned(k, cos, sin, interleaved)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    if interleaved:
        other = torch.stack((-part[..., 1::2], part[..., ::2]), -1).flatten(-2)
    else:
        first, second = part.chunk(2, -1)
        other = torch.cat((-second, first), -1)
    done = (part * cos.unsqueeze(-2) + other * sin.unsqueeze(-2)).to(x.dtype)
    return torch.cat((done, rest), -1) if rest.shape[-1] else done.contiguous()
