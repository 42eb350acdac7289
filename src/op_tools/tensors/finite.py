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
    """Whether a tensor may hold NaN or Inf, and its values can be read."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.is_nested:
        return False
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)


def greatest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The magnitude of the greatest value of each tensor, on its device; NaN if it holds one."""
    result = list(tensors)
    for places in _by_kind(tensors):
        values = [tensors[at].detach() for at in places]
        if values[0].is_complex():
            values = [torch.view_as_real(tensor.resolve_conj()) for tensor in values]
        if statistics.kind_is_seen(values[0].device.type):  # the norms of the host are slow
            bounds = map(torch.aminmax, values)
            norms: Sequence[Tensor] = [torch.maximum(low.neg(), high) for low, high in bounds]
        else:  # one kernel for all
            norms = torch._foreach_norm(values, math.inf)
        for at, norm in zip(places, norms, strict=True):
            result[at] = norm
    return result


def numbers(sizes: Sequence[Tensor]) -> list[float]:
    """Copy numbers to the host, with one copy for each device and type: not all have float64."""
    result = [0.0] * len(sizes)
    for places in _by_kind(sizes):
        values = torch.stack([sizes[at].reshape(()) for at in places]).tolist()
        for at, value in zip(places, values, strict=True):
            result[at] = value
    return result


def _by_kind(tensors: Sequence[Tensor]) -> Iterable[list[int]]:
    """The places of the tensors of each device and type."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(at)
    return kinds.values()


def health(tensors: Iterable[Tensor]) -> Health:
    """Whether there are NaNs or Infs among all the tensors; synchronizes with the device."""
    sizes = numbers(greatest([tensor for tensor in tensors if has_numbers(tensor)]))
    return Health(any(map(math.isnan, sizes)), any(map(math.isinf, sizes)))
