# SPDX-License-Identifier: Apache-2.0
"""Value profiles of a call's tensors. Each reveals errors that the others hide.

A profile changes floating values only, in place, and keeps the requirements of the op as far as
possible without knowing it; where it fails, the CPU refuses the call and the case is skipped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Profile = Callable[[Tensor, torch.Generator], Tensor]


def _positive(values: Tensor, generator: torch.Generator) -> Tensor:
    """No cancellation: sums grow, and lost digits become visible."""
    return values.abs()


def _offset(values: Tensor, generator: torch.Generator) -> Tensor:
    """A mean far from zero with a small spread: a one-pass variance fails."""
    return values * 0.125 + 16.0


def _wide(values: Tensor, generator: torch.Generator) -> Tensor:
    """Magnitudes over many powers of two."""
    powers = torch.randint(-12, 7, values.shape, generator=generator)
    return values * torch.ldexp(torch.ones(values.shape), powers)


def _small(values: Tensor, generator: torch.Generator) -> Tensor:
    """A spread near the square root of the usual eps."""
    return values * 0.003


def _ties(values: Tensor, generator: torch.Generator) -> Tensor:
    """Many equal values: ops that select elements have to break ties."""
    return (values * 2).round() / 2


def _specials(values: Tensor, generator: torch.Generator) -> Tensor:
    """Every seventh value is a NaN, an infinity, a zero of either sign or at the type's limit."""
    finfo = torch.finfo(values.dtype if not values.is_complex() else values.real.dtype)
    special = torch.tensor(
        [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, finfo.max, finfo.min, finfo.tiny],
        dtype=torch.float64,
    )
    flat = values.reshape(-1).clone()
    places = torch.arange(0, flat.numel(), 7)
    chosen = torch.randint(0, special.numel(), places.shape, generator=generator)
    flat[places] = special[chosen].to(flat.dtype)
    return flat.reshape(values.shape)


def _normal(values: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values around zero: op_db's own are uniform, many between -9 and 9."""
    real = values.real if values.is_complex() else values
    drawn = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    least = float(real.min()) if real.numel() else 0.0
    drawn = drawn.abs() if least >= 0 else drawn  # values that were positive stay positive
    return drawn.to(values.dtype)


PROFILES: dict[str, Profile] = {
    "normal": _normal,
    "positive": _positive,
    "offset": _offset,
    "wide": _wide,
    "small": _small,
    "ties": _ties,
    "specials": _specials,
}


def apply(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return the tensor with a profile's values; the tensor itself if its type is not affected."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return tensor
    made = PROFILES[name](tensor.detach(), generator).to(tensor.dtype)
    if tensor.layout == torch.strided and 0 not in tensor.stride():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(made)
    return made.requires_grad_(tensor.requires_grad)
