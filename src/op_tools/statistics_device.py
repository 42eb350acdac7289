"""Statistics of tensors that the host does not see: reduced on their device, read back together.

Nothing here waits for the device but `read`. The kernels are plain ones of torch, so that any
device has them; where one is missing the caller copies the tensor to the host instead.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import torch
from torch import Tensor

from op_tools import snapshot, statistics
from op_tools.statistics import Statistics
from op_tools.statistics_numpy import BLOCK, MASK, hash_of_sums, keys
from op_tools.statistics_text import written

NUMBERS = 5  # min, max, sum, sum of squares, how many are finite
CHUNK = 256  # blocks that are hashed at once: more of them take more memory


_numbers_given = itertools.count()


MARK = "\x01"  # around the number of what a device is still asked for


def new_number() -> str:
    """In digits: of what is asked for. Of those there are many, and a string is none of the
    objects that Python's collector counts and visits.
    """
    return str(next(_numbers_given))


class Later:
    """The statistics of a tensor: a mark that stands for them until the device was asked."""

    __slots__ = ("number", "text")

    def __init__(self, number: str = "") -> None:
        self.number = number = number or new_number()
        self.text = f"{MARK}{number}{MARK}"


class Reduced:
    """Those of one tensor, by torch's own kernels; None until the device was asked."""

    __slots__ = (
        *("_count", "_hash_only", "_hashed", "_size", "_times", "_whole"),
        *("found", "later", "reduced"),
    )

    def __init__(
        self,
        flat: Tensor,
        times: int,
        hash_only: bool,
        hashed: bool = True,
        later: Later | None = None,
    ) -> None:
        self._hash_only, self._hashed = hash_only, hashed
        self._whole = not flat.is_floating_point()
        self._count, self._size = flat.numel(), flat.numel() * flat.element_size()
        self._times = times
        self.later = later or Later()
        self.found: Statistics | None = None
        self.reduced: Tensor | None = _reduced(flat, hash_only, hashed)

    def fill(self, values: list[int]) -> None:
        """What was reduced, on the host."""
        numbers, sums = ([], values) if self._hash_only else (values[:NUMBERS], values[NUMBERS:])
        hashed = hash_of_sums(self._size, [value & MASK for value in sums])
        found = Statistics(hashed if self._hashed else None)
        if numbers and self._count:
            floats = _floats(numbers)
            low, high = (numbers if self._whole else floats)[:2]
            found = self._with(found, low, high, floats[2], floats[3], int(floats[4]))
        self.found = statistics.repeated(found, self._times)
        self.later.text = written(self.found, self._hash_only)
        self.reduced = None

    def _with(
        self,
        found: Statistics,
        low: float,
        high: float,
        total: float,
        squares: float,
        finite: int,
    ) -> Statistics:
        if not finite:
            return found._replace(nonfinite=self._count)
        mean, norm = total / finite, math.sqrt(squares)
        return Statistics(found.hash, low, high, mean, norm, self._count - finite)


def _floats(bits: list[int]) -> list[float]:
    return torch.tensor(bits).view(torch.float64).tolist()


def flat_of(tensor: Tensor) -> tuple[Tensor, int]:
    """Its values one after the other in the order of memory; how often each is."""
    flat, times = snapshot.ordered(tensor)
    flat = flat.contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    # not `reshape`: one element may have a stride of 0
    return flat.as_strided((flat.numel(),), (1,)), times


def later(tensor: Tensor, hash_only: bool, hashed: bool = True) -> Reduced:
    """Starts to reduce a tensor; RuntimeError where its device cannot."""
    flat, times = flat_of(tensor)
    return Reduced(flat, times, hash_only, hashed)


def read(waiting: list[Reduced]) -> None:
    """Fills them all with one copy for each device."""
    by_device: dict[torch.device, list[tuple[Reduced, Tensor]]] = {}
    for one in waiting:
        if one.reduced is not None:
            by_device.setdefault(one.reduced.device, []).append((one, one.reduced))
    for found in by_device.values():
        values = torch.cat([reduced for _, reduced in found]).tolist()
        start = 0
        for one, reduced in found:
            one.fill(values[start : start + reduced.numel()])
            start += reduced.numel()


# On the device.


def _reduced(flat: Tensor, hash_only: bool, hashed: bool) -> Tensor:
    """The numbers, as the bits of float64 or whole, and the sums of the hash: all int64."""
    if not hashed:
        return _numbers(flat)
    sums = _sums(flat)
    if hash_only:
        return sums
    return torch.cat([_numbers(flat), sums])


def _numbers(flat: Tensor) -> Tensor:
    if not flat.numel():
        return torch.zeros(NUMBERS, dtype=torch.int64, device=flat.device)
    if not flat.is_floating_point():
        whole = flat.to(torch.int64)
        wide = flat.to(torch.float64)
        count = torch.full((), flat.numel(), dtype=torch.float64, device=flat.device)
        rest = torch.stack([wide.sum(), wide.square().sum(), count])
        return torch.cat([torch.stack([whole.amin(), whole.amax()]), rest.view(torch.int64)])
    finite = flat.isfinite()
    kept = flat.where(finite, 0).to(torch.float64)
    made = [
        flat.where(finite, math.inf).amin().to(torch.float64),
        flat.where(finite, -math.inf).amax().to(torch.float64),
        kept.sum(),
        kept.square().sum(),
        finite.sum().to(torch.float64),
    ]
    return torch.stack(made).view(torch.int64)


def _sums(flat: Tensor) -> Tensor:
    """Of each block of the hash its two sums, one after the other: see `hash_bytes`."""
    data = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    if data.storage_offset() % 8:
        data = data.clone()
    words = data[: data.numel() // 8 * 8].view(torch.int64)
    whole = words.numel() // BLOCK
    blocks = words[: whole * BLOCK].view(whole, BLOCK)
    parts = [blocks[start : start + CHUNK] for start in range(0, whole, CHUNK)]
    if words.numel() % BLOCK:
        parts.append(words[whole * BLOCK :][None])
    if data.numel() % 8:
        tail = torch.zeros(8, dtype=torch.uint8, device=flat.device)
        tail[: data.numel() % 8] = data[words.numel() * 8 :]
        parts.append(tail.view(torch.int64)[None])
    if not parts:
        return words
    factors = _keys(flat.device)
    return torch.cat([_sums_of(part, factors[: part.shape[1]]) for part in parts])


def _sums_of(rows: Tensor, factors: Tensor) -> Tensor:
    upper = (rows >> 32) & 0xFFFFFFFF
    return torch.stack([(rows * factors).sum(1), (upper * factors).sum(1)], 1).view(-1)


@cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(keys().view("int64")).to(device)
