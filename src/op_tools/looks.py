"""Whether there are NaNs or Infs in tensors: asked of their device now, and read later, many at
once, where to read is to wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from op_tools import statistics


@dataclass(frozen=True)
class Health:
    """Whether there are NaNs or Infs among some tensors."""

    nan: bool = False
    inf: bool = False

    def __or__(self, other: Health) -> Health:
        return Health(self.nan or other.nan, self.inf or other.inf)


class Look:
    """At some tensors; what it found is None until it is read. An Inf may hide behind a NaN."""

    __slots__ = ("found", "greatest")

    def __init__(self, greatest: list[Tensor]) -> None:
        self.greatest = greatest  # the magnitude of each tensor's greatest value, on its device
        self.found: Health | None = None if greatest else Health()

    @classmethod
    def of(cls, looks: Sequence[Look]) -> Look:
        """Several as one, before they are read."""
        return cls([one for look in looks for one in look.greatest])

    def fill(self, values: Sequence[float]) -> None:
        self.found = Health(any(map(math.isnan, values)), any(map(math.isinf, values)))
        self.greatest = []


class Looks:
    """A tensor that is as it was is looked at once until `read`; so long it is held."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int, Tensor]] = {}  # by address

    def at(self, tensors: Iterable[Tensor]) -> Look:
        """Asks the device, with one kernel for many tensors; waits for nothing."""
        numbers = [tensor for tensor in tensors if has_numbers(tensor)]
        found = [self._find(tensor) for tensor in numbers]
        new = [tensor for tensor, known in zip(numbers, found, strict=True) if known is None]
        made = iter(greatest(new))
        return Look(
            [
                self._keep(tensor, next(made)) if known is None else known
                for tensor, known in zip(numbers, found, strict=True)
            ]
        )

    def _find(self, tensor: Tensor) -> Tensor | None:
        known = self._known.get(tensor.data_ptr())
        if known is None or tensor.is_inference() or known[1] != tensor._version:
            return None
        same = (known[0].dtype, known[0].shape) == (tensor.dtype, tensor.shape)
        return known[2] if same and known[0].stride() == tensor.stride() else None

    def _keep(self, tensor: Tensor, made: Tensor) -> Tensor:
        if not tensor.is_inference():
            self._known[tensor.data_ptr()] = tensor.detach(), tensor._version, made
        return made

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """They may be written, and nothing may count that."""
        for tensor in tensors:
            if has_numbers(tensor):
                self._known.pop(tensor.data_ptr(), None)

    def clear(self) -> None:
        """Any may be."""
        self._known = {}

    def read(self, looks: Sequence[Look]) -> None:
        """Fills them in, with one copy for each device and type."""
        self.clear()
        parts: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        unread = [look for look in looks if look.found is None]
        for look in unread:
            for one in look.greatest:
                parts.setdefault((one.device, one.dtype), []).append(one)
        for device in {device for device, _ in parts}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)  # they may come from several streams
        values = {key: iter(torch.stack(some).tolist()) for key, some in parts.items()}
        for look in unread:
            look.fill([next(values[one.device, one.dtype]) for one in look.greatest])


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
    looks = Looks()
    look = looks.at(tensors)
    looks.read([look])
    assert look.found is not None  # it was read
    return look.found
