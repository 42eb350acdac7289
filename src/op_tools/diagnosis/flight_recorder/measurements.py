# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's measurements of tensors, and its budget of time."""

from __future__ import annotations

import math
import statistics as averages
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time_ns
from typing import Any

import torch
from torch import Tensor

from op_tools.tensors import finite, statistics

WAIT = 0.01  # of a step at most, to read the loss before the backward pass
BLOCK, AHEAD, BLOCKS = 12, 4, 11  # steps, those at its start that are not counted, and how many
SHARE = 0.01  # of the program's time; waiting for a device may have as much, of the 3 % in all
UNSEEN = (
    5_000  # nanoseconds of an entry that no clock of ours sees: torch's way to it, and cold caches
)
WARM = 16  # losses before a leap can be detected
MEMORY = 32  # steps that the mean covers
LEAP = 4.0  # times the usual loss
SMALL = 4096  # bytes of a loss's memory that may be held for some steps
HALVES = (torch.float16, torch.bfloat16)
Figures = list[Any]  # largest magnitude, norm, values that are not finite, hash


class Budget:
    """A share of the elapsed time, limited to that of a few steps. Time that other programs on the
    machine use does not count.
    """

    def __init__(self) -> None:
        self.begun = self._step = perf_counter_ns()
        self._worked = process_time_ns()
        self.spent = self._entered = 0
        self._left = 0.0

    def step(self) -> None:
        """End a step: its share, and unused time, may be spent in the next one."""
        now, worked = perf_counter_ns(), process_time_ns()
        took = min(now - self._step, worked - self._worked)
        self._step, self._worked = now, worked
        self._left = min(self._left + SHARE * took, 4 * SHARE * took)

    def enter(self) -> None:
        """Begin a piece of work of the tool."""
        self._entered = perf_counter_ns()

    def awaited(self, value: Tensor) -> float:
        """Read a number from a device. The time until the device is ready is the program's."""
        begun = perf_counter_ns()
        found = float(value.item())
        self._entered += perf_counter_ns() - begun
        return found

    def leave(self) -> None:
        used = perf_counter_ns() - self._entered + UNSEEN
        self._entered = 0
        self.spent += used
        self._left -= used

    @property
    def open(self) -> bool:
        """Whether the budget allows more work."""
        used = perf_counter_ns() - self._entered if self._entered else 0
        return self._left > used

    @property
    def share(self) -> float:
        return self.spent / max(1, perf_counter_ns() - self.begun)


class Patience:
    """Decides whether to synchronize with a device in a step, by blocks of steps with and without
    it. The time by which the host is ahead or behind does not count.
    """

    def __init__(self) -> None:
        self.waits = True
        self._steps = 0
        self._took: tuple[list[float], list[float]] = ([], [])  # a step without, and with
        self._block: list[float] = []

    def step(self, took: float) -> None:
        """Add the seconds of a step."""
        if self._steps >= BLOCK * BLOCKS:
            return
        if self._steps % BLOCK >= AHEAD:
            self._block.append(took)
        self._steps += 1
        if self._steps % BLOCK:
            return
        if self._steps > BLOCK:  # the first step initializes
            self._took[self.waits].append(averages.fmean(self._block))
        self._block.clear()
        self.waits = not self.waits
        if self._steps == BLOCK * BLOCKS:
            without, waiting = map(averages.median, self._took)
            self.waits = waiting <= (1 + WAIT) * without


@dataclass
class Usual:
    """Running mean and deviation of the loss, in a few operations for each step."""

    mean: float = 0.0
    spread: float = 0.0
    count: int = 0

    def leaps(self, loss: float) -> bool:
        """Whether a loss is far above the usual one; any other loss is added to the statistics."""
        known = self.count >= WARM
        rise = loss - self.mean
        leap = known and rise > max((LEAP - 1) * abs(self.mean), 10 * self.spread)
        part = max(1 / (self.count + 1), 1 / MEMORY)
        if not leap:
            self.mean += part * rise
            self.spread += part * (abs(rise) - self.spread)
            self.count += 1
        return leap


Place = tuple[dict[str, Any], str]  # a part of a line, and a name in it


@dataclass
class _Later:
    """Metrics that a device has not returned; without places: losses."""

    places: list[Place]
    into: list[dict[str, Any]]
    values: Tensor
    event: Any


@dataclass
class Signals:
    """Metrics of tensors: read at once if the host sees the memory, else asynchronously."""

    waiting: deque[_Later] = field(default_factory=deque)
    held: list[tuple[Tensor, int, dict[str, Any]]] = field(default_factory=list)  # losses

    def take(self, places: Sequence[Place], tensors: Sequence[Tensor | None]) -> None:
        """Add the metrics of tensors to lines, now or later. Many tensors cost little more than
        one.
        """
        others: list[tuple[Place, Tensor]] = []
        for place, tensor in zip(places, tensors, strict=True):
            if tensor is None or not finite.has_numbers(tensor):
                continue
            if statistics.is_seen(tensor):
                into, name = place
                into[name] = figures(tensor.detach())
            else:
                others.append((place, tensor.detach()))
        if others:
            self._ask([place for place, _ in others], [tensor for _, tensor in others])

    def _ask(self, places: list[Place], tensors: list[Tensor]) -> None:
        wide = torch.float32 if all(t.dtype in HALVES for t in tensors) else None
        largest = torch._foreach_norm(tensors, math.inf, wide)
        norms = torch._foreach_norm(tensors, 2, wide)
        found = [*largest, *norms]
        if len({value.dtype for value in found}) > 1:
            found = [value.float() for value in found]
        both = torch.stack(found)
        host = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
        host.copy_(both, non_blocking=True)
        into = [part for part, _ in places]
        self.waiting.append(_Later(places, into, host, _event(both.device)))

    def hold(self, loss: Tensor, into: dict[str, Any]) -> None:
        """Keep a number of a device for a line; `ask` reads all of them. Hot path."""
        small = loss.untyped_storage().nbytes() <= SMALL
        value = loss if small else loss.clone()  # a view would keep its base alive
        self.held.append((value, value._version, into))

    def ask(self) -> None:
        """Read the kept losses with one copy, except those that were overwritten."""
        held, self.held = self.held, []
        kept = [(value, into) for value, version, into in held if value._version == version]
        kinds = {(value.device, value.dtype) for value, _ in kept}
        for kind in kinds:
            some = [(v, into) for v, into in kept if (v.device, v.dtype) == kind]
            both = torch.stack([value.reshape(()) for value, _ in some])
            host = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
            host.copy_(both, non_blocking=True)
            self.waiting.append(_Later([], [into for _, into in some], host, _event(both.device)))

    def arrived(self, wait: bool = False) -> None:
        """Fill in the metrics that have arrived; `wait`: all of them."""
        while self.waiting:
            later = self.waiting[0]
            if wait:
                later.event.synchronize()
            elif not later.event.query():
                return
            self.waiting.popleft()
            values, count = later.values.tolist(), len(later.places)
            if not later.places:
                for into, loss in zip(later.into, values, strict=True):
                    put_loss(into, loss)
                continue
            for at, (into, name) in enumerate(later.places):
                largest, norm = values[at], values[count + at]
                into[name] = _line(largest, norm, int(not math.isfinite(largest)), "")

    def pending(self) -> set[int]:
        """The ids of the parts of lines that are to be filled in."""
        asked = {id(part) for later in self.waiting for part in later.into}
        return asked | {id(into) for _, _, into in self.held}


def put_loss(into: dict[str, Any], loss: float) -> None:
    """Set the loss of the last backward pass of the step, or the first one that is not finite."""
    if math.isfinite(into.get("loss", 0.0)):
        into["loss"] = loss


def _event(device: torch.device) -> Any:
    made = torch.Event(device)
    made.record()
    return made


def figures(tensor: Tensor) -> Figures:
    """The metrics of a tensor whose memory the host sees."""
    found = statistics.of(tensor)
    low, high = float(found.min or 0), float(found.max or 0)
    return _line(max(abs(low), abs(high)), found.norm or 0.0, found.nonfinite, found.hex)


def _line(largest: float, norm: float, nonfinite: int, hashed: str) -> Figures:
    """The metrics for JSON, with nan and inf as null."""
    numbers = [float(f"{v:.5g}") if math.isfinite(v) else None for v in (largest, norm)]
    return [*numbers, nonfinite, hashed]
