# SPDX-License-Identifier: Apache-2.0
"""Allocation of a cache of keys and values in the memory layout of the device's vendor."""

from __future__ import annotations

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer import kernels
from dlinfer.layout import DIMENSIONS, Layout

__all__ = ["Layout", "cache_layout", "new_cache"]


def cache_layout(device: torch.device | str) -> Layout:
    """Return the layout that the kernels for a device require of a cache."""
    return kernels.served(torch.device(device).type).layout


def new_cache(
    blocks: int,
    block_size: int,
    heads: int,
    size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    layout: Layout | None = None,
) -> Tensor:
    """Allocate an uninitialised cache, [blocks, block_size, heads, size] in the vendor's layout."""
    wanted = layout or cache_layout(device)
    if wanted.block_sizes and block_size not in wanted.block_sizes:
        allowed = ", ".join(map(str, wanted.block_sizes))
        raise DeeplinkError(
            _(
                "the kernels for {device} have no blocks of {block_size} tokens; "
                "allowed: {allowed}."
            ).format(device=device, block_size=block_size, allowed=allowed),
            _("dlinfer.cache_layout(device).block_sizes tells."),
        )
    sizes = dict(zip(DIMENSIONS, (blocks, block_size, heads, size), strict=True))
    memory = torch.empty([sizes[name] for name in wanted.order], dtype=dtype, device=device)
    return memory.permute([wanted.order.index(name) for name in DIMENSIONS])
