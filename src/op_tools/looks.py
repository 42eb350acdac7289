"""Whether there are NaNs or Infs in tensors: asked of their device now, and read later, many at
once, where to read is to wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Bounds = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Health:
    """Whether there are NaNs or Infs among some tensors."""

    nan: bool = False
    inf: bool = False

    def __or__(self, other: Health) -> Health:
        return Health(self.nan or other.nan, self.inf or other.inf)


class Look:
    """At some tensors; what it found is None until it is read. An Inf may hide behind a NaN."""

    __slots__ = ("_bounds", "found")

    def __init__(self, bounds: list[Bounds]) -> None:
        self._bounds = bounds
        self.found: Health | None = None if bounds else Health()

    @classmethod
    def of(cls, looks: Sequence[Look]) -> Look:
        """Several as one, before they are read."""
        return cls([pair for look in looks for pair in look._bounds])

    @property
    def unread(self) -> list[Bounds]:
        return self._bounds if self.found is None else []

    def fill(self, pairs: Iterable[tuple[float, float]]) -> None:
        values = [value for pair in pairs for value in pair]
        self.found = Health(any(map(math.isnan, values)), any(map(math.isinf, values)))
        self._bounds = []


class Looks:
    """A tensor that is as it was is looked at once until `read`; so long it is held."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int, Bounds]] = {}  # by address

    def at(self, tensors: Iterable[Tensor]) -> Look:
        """Asks the device; waits for nothing."""
        return Look([self._bounds(tensor) for tensor in tensors if has_numbers(tensor)])

    def _bounds(self, tensor: Tensor) -> Bounds:
        if not tensor.is_contiguous() or tensor.is_inference():
            return bounds(tensor)
        known = self._known.get(tensor.data_ptr())
        if known is not None:
            same = (known[0].numel(), known[0].dtype) == (tensor.numel(), tensor.dtype)
            if same and known[1] == tensor._version:
                return known[2]
        made = bounds(tensor)
        self._known[tensor.data_ptr()] = tensor.detach(), tensor._version, made
        return made

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """They may be written, and nothing may count that."""
        for tensor in tensors:
            if has_numbers(tensor):
                self._known.pop(tensor.data_ptr(), None)

    def read(self, looks: Sequence[Look]) -> None:
        """Fills them in, with one copy for each device and type."""
        self._known = {}
        parts: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for look in looks:
            for pair in look.unread:
                parts.setdefault((pair[0].device, pair[0].dtype), []).extend(pair)
        for device in {device for device, _ in parts}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)  # they may come from several streams
        values = {key: iter(torch.stack(some).tolist()) for key, some in parts.items()}
        for look in looks:
            if look.found is None:
                places = [values[pair[0].device, pair[0].dtype] for pair in look.unread]
                look.fill([(next(place), next(place)) for place in places])


def has_numbers(tensor: Tensor) -> bool:
    """Whether there may be NaN or Inf in it, and they can be looked for."""
    if not tensor.numel() or tensor.layout != torch.strided or tensor.is_nested:
        return False
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)


def bounds(tensor: Tensor) -> Bounds:
    """The least and the greatest value: NaN where there is one."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    low, high = torch.aminmax(tensor)
    return low, high


def health(tensors: Iterable[Tensor]) -> Health:
    """Of all the tensors together; waits for the device."""
    looks = Looks()
    look = looks.at(tensors)
    looks.read([look])
    assert look.found is not None  # it was read
    return look.found
