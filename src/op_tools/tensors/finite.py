# SPDX-License-Identifier: Apache-2.0
"""Whether there are NaNs or Infs in tensors, by the magnitude of their greatest values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from op_tools.tensors import statistics


@dataclass(frozen=True)
class Health:
    """Whether there are NaNs or Infs among some tensors."""

    nan: bool = False
    inf: bool = False


def has_numbers(tensor: Tensor) -> bool:
    """Whether there may be NaN or Inf in it, and they can be looked for."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.is_nested:
        return False
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)


def greatest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The magnitude of the greatest value of each: NaN where there is one."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(at)
    made: list[Tensor] = list(tensors)
    for places in kinds.values():
        given = [tensors[at].detach() for at in places]
        if given[0].is_complex():
            given = [torch.view_as_real(tensor.resolve_conj()) for tensor in given]
        norms = _one_by_one if statistics.kind_is_seen(given[0].device.type) else _together
        for at, found in zip(places, norms(given), strict=True):
            made[at] = found
    return made


def _together(tensors: list[Tensor]) -> Sequence[Tensor]:
    """With one kernel, where a kernel more is what costs."""
    return torch._foreach_norm(tensors, math.inf)


def _one_by_one(tensors: list[Tensor]) -> list[Tensor]:
    """By the host's fastest kernel: its norms take ten times as long."""
    bounds = [torch.aminmax(tensor) for tensor in tensors]
    return [torch.maximum(low.neg(), high) for low, high in bounds]


def numbers(sizes: Sequence[Tensor]) -> list[float]:
    """Numbers of devices, with one copy for each device and type: not all have float64."""
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, size in enumerate(sizes):
        places.setdefault((size.device, size.dtype), []).append(at)
    found = [0.0] * len(sizes)
    for here in places.values():
        values = torch.stack([sizes[at].reshape(()) for at in here]).tolist()
        for at, value in zip(here, values, strict=True):
            found[at] = value
    return found


def health(tensors: Iterable[Tensor]) -> Health:
    """Of all the tensors together; waits for the device."""
    found = numbers(greatest([tensor for tensor in tensors if has_numbers(tensor)]))
    return Health(any(map(math.isnan, found)), any(map(math.isinf, found)))
