# SPDX-License-Identifier: Apache-2.0
"""Other sizes for a call: op_db's are tiny, and kernels fail at tiles, tails and zero elements.

One mapping of sizes applies to all tensors of a call, so that related sizes stay equal. Numbers
among the arguments are unchanged; where that is invalid, the CPU refuses the call and it is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MOST = 1 << 16  # elements of all arguments
LEAST = 4  # smaller sizes are channels, kernels, pairs: they are not changed

Sizes = Callable[[int], int]


def _odd() -> Iterator[Sizes]:
    yield lambda size: 4 * size - 1 if size >= LEAST else size


def _large() -> Iterator[Sizes]:
    for factor in (210, 50, 16, 6):  # the largest that fits
        yield lambda size, factor=factor: factor * size + 3 if size >= LEAST else size  # type: ignore[misc]


def _empty() -> Iterator[Sizes]:
    yield lambda size: 0 if size >= LEAST else size


GROWTHS: dict[str, Callable[[], Iterator[Sizes]]] = {
    "odd": _odd,
    "large": _large,
    "empty": _empty,
}


RANKS = tuple(f"rank{rank}" for rank in range(6))


class NoGrowthError(Exception):
    """The sizes of this call cannot be changed; the text is the reason."""


def ranked(name: str, values: Any, generator: torch.Generator) -> Any:
    """Change the rank of the arguments: add leading dimensions of 2, or take the first slices.

    Tensors of a lower rank than the highest one broadcast against it and are unchanged.
    """
    rank = RANKS.index(name)
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
    if any(t.layout != torch.strided or t.is_quantized for t in tensors):
        raise NoGrowthError("it has a tensor that is not plain")
    top = max((t.dim() for t in tensors), default=rank)
    if rank == top or any(not t.numel() for t in tensors):
        raise NoGrowthError(f"it has rank {rank} already, or no elements")

    def change(tensor: Tensor) -> Tensor:
        if rank < tensor.dim():
            made = tensor.detach()[(0,) * (tensor.dim() - rank)].clone()
            return made.requires_grad_(tensor.requires_grad)
        if rank < top or tensor.dim() < top:
            return tensor
        return _drawn(tensor, [2] * (rank - top) + list(tensor.shape), generator)

    if sum(t.numel() for t in tensors) << max(0, rank - top) > MOST:
        raise NoGrowthError(f"it would have more than {MOST} elements")
    return pytree.tree_map_only(Tensor, change, values)


def apply(name: str, values: Any, generator: torch.Generator) -> Any:
    """Change the sizes of the arguments, with values from the range of the original ones."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
    if any(t.layout != torch.strided or t.is_quantized or not t.numel() for t in tensors):
        raise NoGrowthError("it has a tensor that is not plain")
    if not any(size >= LEAST for t in tensors for size in t.shape):
        raise NoGrowthError("its sizes are all small")
    for sizes in GROWTHS[name]():
        if sum(_count(t, sizes) for t in tensors) <= MOST:
            grown = partial(_grown, sizes=sizes, generator=generator)
            return pytree.tree_map_only(Tensor, grown, values)
    raise NoGrowthError(f"it would have more than {MOST} elements")


def _count(tensor: Tensor, sizes: Sizes) -> int:
    count = 1
    for size in tensor.shape:
        count *= sizes(size)
    return count


def _grown(tensor: Tensor, sizes: Sizes, generator: torch.Generator) -> Tensor:
    return _drawn(tensor, [sizes(size) for size in tensor.shape], generator)


def _drawn(tensor: Tensor, shape: list[int], generator: torch.Generator) -> Tensor:
    """Create a tensor of another shape with values from the range of this one's."""
    flat = tensor.detach().reshape(-1)

    def drawn() -> Tensor:
        return flat[torch.randint(0, flat.numel(), shape, generator=generator)]

    made = drawn()
    if tensor.is_floating_point():
        share = torch.rand(shape, generator=generator, dtype=torch.float64)
        made = torch.lerp(made.double(), drawn().double(), share).to(tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)
