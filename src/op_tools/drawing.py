"""What rounding may do to a call, drawn on its own device where that is faster than on the host.

The reference stays the host's. The device draws only after it has computed the same in float64: a
kernel that is wrong there would make the envelope wide, and so be excused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter

import torch
from torch import Tensor

from deeplink.judge.formats import is_inexact
from op_tools import statistics
from op_tools.again import Again

DRAWN = 1 << 18  # numbers that tell how fast random ones are drawn
FASTER = 3.0  # times: less is not worth the way there
EXACT = 2.0**-40  # of the largest value: so far, float64 on two devices may differ

Once = Callable[[Again], Sequence[Tensor | None]]
Noise = Callable[[Again, Callable[[], Sequence[Tensor | None]], Sequence[Tensor | None]], "Sigma"]
Sigma = list[Tensor | None] | None


def drawn(
    again: Again, device: torch.device, once: Once, centre: Sequence[Tensor | None], noise: Noise
) -> Sigma:
    """`noise` of a call on its device; None where the host has to do it."""
    if not is_faster(device):
        return None
    try:
        moved = again.on(device)
        there = [None if t is None else t.detach().to(device) for t in centre]
        if not agree(once(moved), there):
            return None
        found = noise(moved, lambda: once(moved), there)
        return None if found is None else [None if t is None else t.cpu() for t in found]
    except Exception:  # no float64, no kernel, no memory: whatever a device may raise, the host can
        return None


def agree(mine: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> bool:
    """Whether the device's float64 is the host's, as far as that can be."""
    for a, b in zip(mine, theirs, strict=True):
        if a is None or b is None or not b.numel() or not is_inexact(b.dtype):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        a, b = (torch.nan_to_num(t.detach(), 0.0, 0.0, 0.0) for t in (a, b))
        if bool((a - b).abs().max() > EXACT * b.abs().max()):
            return False
    return True


@cache
def is_faster(device: torch.device) -> bool:
    """Whether a device draws random numbers much faster than the host."""
    if device.type in ("cpu", "meta"):
        return False
    try:
        if statistics.kind_is_seen(device.type):  # its kernels are the host's
            return False
        return FASTER * _seconds(device) < _seconds(torch.device("cpu"))
    except Exception:  # as above
        return False


def _seconds(device: torch.device) -> float:
    generator, best = torch.Generator(device), float("inf")
    for _ in range(4):
        begun = perf_counter()
        numbers = torch.rand(DRAWN, dtype=torch.float64, device=device, generator=generator)
        float(numbers.add_(1.0)[0])  # waits for it
        best = min(best, perf_counter() - begun)
    return best
