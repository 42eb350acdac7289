# SPDX-License-Identifier: Apache-2.0
"""The memory layout of a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

DIMENSIONS = "NBHD"  # blocks, positions in a block, heads, size: the order in every op


@dataclass(frozen=True)
class Layout:
    """The layout that a vendor's kernels require of a cache: order of dimensions, block sizes."""

    order: str = DIMENSIONS  # outermost first; "NHBD" keeps a head's block together
    block_sizes: tuple[int, ...] = ()  # empty: any
