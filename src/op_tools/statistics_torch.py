"""The numbers of values on the host by a few of torch's reductions: no hash, no native part."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

from op_tools.statistics_numpy import ORDINARY, WIDE, Numbers, of_whole

ROW = 1024  # values whose squares are summed as they are
NOTHING: Numbers = (None, None, None, None, 0)


def numbers(flat: Tensor) -> Numbers:
    """Of values that lie one after the other; over those that are finite, and how many are not."""
    if not flat.numel():
        return NOTHING
    if not flat.is_floating_point():
        return of_whole(flat)
    if flat.dtype not in WIDE:
        flat = flat.to(torch.float32)  # exact
    # both tell of a NaN; one pass for the two of them (aminmax) takes longer
    low, high = flat.amin().item(), flat.amax().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return _of_finite(flat)
    total, norm = _sums(flat, max(-low, high))
    return low, high, total / flat.numel(), norm, 0


def _of_finite(flat: Tensor) -> Numbers:
    array = flat.numpy()
    finite = torch.from_numpy(array[np.isfinite(array)])  # quicker than torch's own ways
    return *numbers(finite)[:4], flat.numel() - finite.numel()


def _sums(flat: Tensor, greatest: float) -> tuple[float, float]:
    """The sum and the root of the sum of squares."""
    if flat.dtype == torch.float32 and not ORDINARY[0] < greatest < ORDINARY[1]:
        flat = flat.to(torch.float64)
    total = flat.sum().item()
    rows = flat.numel() // ROW * ROW
    if not rows or flat.dtype == torch.float64:
        return total, vector_norm(flat).item()
    norms = vector_norm(flat[:rows].view(-1, ROW), dim=1)
    norm = vector_norm(norms, dtype=torch.float64).item()
    if rows < flat.numel():
        norm = math.hypot(norm, vector_norm(flat[rows:]).item())
    return total, norm
