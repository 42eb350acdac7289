# SPDX-License-Identifier: Apache-2.0
"""The cache of keys and values in blocks: [blocks, block size, heads, size] in every op.

This is the order of the dimensions; the memory layout is the vendor's (`dlinfer.cache`), as the
strides show. A slot is a position in the cache: block * block size + position in the block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.op import op, wide

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # of FLOAT8, which has no infinity


def quantised(
    x: Tensor, scales: Tensor | None, zeros: Tensor | None, dtype: torch.dtype = torch.int8
) -> Tensor:
    """Quantise x: x / scale + zero; scales and zeros are [heads, size] or expandable to it."""
    moved = wide(x) if scales is None else wide(x) / scales
    moved = moved if zeros is None else moved + zeros
    if dtype == FLOAT8:
        return moved.clamp(-LARGEST, LARGEST).to(dtype)
    return moved.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else moved.to(dtype)


def restored(x: Tensor, scales: Tensor | None, zeros: Tensor | None) -> Tensor:
    """Invert `quantised`, except for its rounding; return x itself when there are no scales."""
    if scales is None:
        return wide(x) if x.dtype == FLOAT8 else x
    moved = x.to(scales.dtype)
    return (moved if zeros is None else moved - zeros) * scales


@op(
    "Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, "
    "Tensor? k_scales=None, Tensor? v_scales=None, Tensor? k_zeros=None, Tensor? v_zeros=None",
    "()",
    fake=lambda *_, **__: None,
)
def fill_kv_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    k_zeros: Tensor | None = None,
    v_zeros: Tensor | None = None,
) -> None:
    """Write k and v [tokens, heads, size] to their slots [tokens]; a negative slot writes nothing.

    With scales the caches hold int8 or float8_e4m3fn: x / scale + zero, rounded. Caches of
    float8_e4m3fn need no scales; values beyond its range become its largest.
    """
    kept = slots >= 0
    places = slots[kept].long()
    for new, cache, scales, zeros in (
        (k, k_cache, k_scales, k_zeros),
        (v, v_cache, v_scales, v_zeros),
    ):
        rows = quantised(new[kept], scales, zeros, cache.dtype)
        size = cache.shape[1]
        if cache.dtype == FLOAT8:  # as bytes: torch indexes few types of 8 bits
            cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
        cache[places // size, places % size] = rows
