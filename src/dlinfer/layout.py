# SPDX-License-Identifier: Apache-2.0
"""How a cache of keys and values lies in memory."""

from __future__ import annotations

from dataclasses import dataclass

DIMENSIONS = "NBHD"  # blocks, places in a block, heads, size: the order in every op


@dataclass(frozen=True)
class Layout:
    """What a vendor's kernels want of a cache: the order of dimensions in memory, block sizes."""

    order: str = DIMENSIONS  # outermost first; "NHBD" keeps a head's block together
    block_sizes: tuple[int, ...] = ()  # empty: any
