# SPDX-License-Identifier: Apache-2.0
"""Checks a large call on its device: a block of it, computed alone, has to give the same values.

Rows, heads, images and elements that do not depend on each other have the same results whether they
are computed together or not. A kernel whose error depends on the place (a tile, an edge, one
element) errs at another place of the block, so the two results differ. The check reads every
element of the block and finds a single wrong one, which a sample of a few thousand elements misses.
An error that every element has alike is in both results: the host finds it in a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.compare import slices
from op_tools.compare.slices import Aim, Chooser, Picks, Slice
from op_tools.core.call import Call, tensor_list

ELEMENTS = 1 << 24  # of a block on a device
ON_HOST = 1 << 20  # of a block whose kernels are the host's
PLACES, BLOCKS = 8, 8  # elements of a suspect that are judged on the host, and blocks searched
# Units by which a block may differ, as it may be summed in another order.
ROUNDING, SUMMING = 8, 256


class Block(Chooser):
    """Chooses neighbouring indices, and at most half of the largest dimension.

    Consecutive calls start at other indices, so that every element is checked after a few calls.
    """

    def __init__(self, elements: int) -> None:
        super().__init__(scale=elements / slices.SAMPLE)
        self._call = 0

    def next_call(self) -> None:
        super().next_call()
        self._call += 1

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks | None:
        return super().__call__(shape, free, min(elements, max(1, math.prod(shape) // 2)))

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        step = slices.STEPS[self._dimension % len(slices.STEPS)]
        self._dimension += 1
        return (torch.arange(count) + int(self._call * step % 1.0 * size)) % size

    def edge(self, inner: int) -> int:
        """Products are not computed again: the projection checks them."""
        raise ValueError("a product")


def differing(call: Call, result: Any, choose: Chooser) -> Tensor | None:
    """Count, on the device, the elements of a block that differ; None: the call has no block.

    Call it outside of the graph. The count is a tensor of one element.
    """
    pairs = _pairs(call, result, choose)
    if not pairs:
        return None
    return torch.stack([_wrong(mine, again).sum() for mine, again in pairs]).sum().reshape(1)


def places(call: Call, result: Any, choose: Chooser) -> list[Aim]:
    """Where elements of the first result differ from blocks. Waits for the device.

    Some of them are right: the block computed alone errs, too, at another place of the call.
    """
    found: dict[tuple[int, ...], None] = {}
    for _ in range(BLOCKS):
        pairs = _pairs(call, result, choose)
        if not pairs or len(found) >= PLACES:
            break
        mine, again = pairs[0]
        picks: Picks = getattr(mine, "picks", ())
        if len(picks) != mine.dim():
            break
        for place in _wrong(mine, again).nonzero()[:PLACES].tolist():
            own = zip(place, picks, strict=True)
            found[tuple([at if pick is None else int(pick[at]) for at, pick in own])] = None
    return list(map(Aim, found))


def _pairs(call: Call, result: Any, choose: Chooser) -> list[tuple[Tensor, Tensor]]:
    """The results of a block: as in the large call, and computed alone."""
    name = call.operator
    # convolutions are checked by a projection; gradients of attention are sums that cancel
    if name.startswith("conv") or ("attention" in name and name.endswith("backward")):
        return []
    part = slices.slice_of(call, choose)
    if part is None or part.written is not None or not part.is_result_judged:
        return []
    again = tensor_list(_run(call, part))
    mine = tensor_list(part.result(result))
    if [one.shape for one in mine] != [one.shape for one in again]:
        return []
    return [(one, other) for one, other in zip(mine, again, strict=True) if one.numel()]


def _run(call: Call, part: Slice) -> Any:
    func = call.func if part.func is None else part.func
    try:
        return func(*part.args, **part.kwargs)
    except (RuntimeError, ValueError, NotImplementedError):  # the device refuses the smaller call
        return None


def _wrong(mine: Tensor, again: Tensor) -> Tensor:
    """Which elements differ by more than another order of summation explains."""
    differ = mine != again
    if not (mine.is_floating_point() or mine.is_complex()):
        return differ
    differ &= ~((mine != mine) & (again != again))  # NaN in both
    is_double = mine.dtype in (torch.float64, torch.complex128)
    wide = torch.float64 if is_double else torch.float32  # sums of a narrow type are made in it
    one, other = (t.to(wide) if t.is_floating_point() else t for t in (mine, again))
    size = torch.maximum(one.abs(), other.abs())
    mean = torch.where(size.isfinite(), size, 0).mean()
    allowed = ROUNDING * torch.finfo(mine.dtype).eps + SUMMING * torch.finfo(wide).eps
    close = (one - other).abs() <= allowed / 2 * (size + mean)
    return differ & ~(close & size.isfinite())
