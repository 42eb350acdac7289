# SPDX-License-Identifier: Apache-2.0
"""The cache of keys and values in blocks: [blocks, block size, heads, size] in every op.

This is the order of the dimensions; the memory layout is the vendor's (`dlinfer.cache`), as the
strides show. A slot is a position in the cache: block * block size + position in the block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.op import op, wide


def quantised(x: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """Quantise x to int8: x / scale + zero; scales and zeros are [heads,
    size] or expandable to it.
    """
    moved = wide(x) / scales
    moved = moved if zeros is None else moved + zeros
    return moved.round().clamp(-128, 127).to(torch.int8)


def restored(x: Tensor, scales: Tensor | None, zeros: Tensor | None) -> Tensor:
    """Invert `quantised`, except for its rounding; return x itself when there are no scales."""
    if scales is None:
        return x
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

    With scales the caches hold int8: x / scale + zero, rounded.
    """
    kept = slots >= 0
    places = slots[kept].long()
    for new, cache, scales, zeros in (
        (k, k_cache, k_scales, k_zeros),
        (v, v_cache, v_scales, v_zeros),
    ):
        rows = new[kept]
        rows = rows.to(cache.dtype) if scales is None else quantised(rows, scales, zeros)
        size = cache.shape[1]
        cache[places // size, places % size] = rows
