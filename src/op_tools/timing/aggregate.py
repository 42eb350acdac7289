# SPDX-License-Identifier: Apache-2.0
"""Times of many calls in bounded memory: count, total, least, percentiles, in groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal

from op_tools.core.call import Site
from op_tools.core.collectives import Collective

View = Literal["op", "shape", "module", "line"]
VIEWS: tuple[View, ...] = ("op", "shape", "module", "line")
_STEPS = 50  # classes of durations for each factor of e: a percentile is exact within 1 %


@dataclass
class Times:
    """Milliseconds of some calls. `first` includes the warm-up, so `least` leaves it out."""

    count: int = 0
    total: float = 0.0
    first: float = 0.0
    least: float = float("inf")  # of the others
    most: float = 0.0
    classes: dict[int, int] = field(default_factory=dict)

    def add(self, ms: float) -> None:
        """Add the time of a call."""
        if not self.count:
            self.first = ms
        elif ms < self.least:
            self.least = ms
        if ms > self.most:
            self.most = ms
        self.count += 1
        self.total += ms
        number = round(log(ms) * _STEPS) if ms > 0 else -(10**6)
        self.classes[number] = self.classes.get(number, 0) + 1

    def add_sums(
        self,
        count: int,
        total: float,
        first: float,
        least: float,
        most: float,
        classes: dict[int, int],
    ) -> None:
        """Add the times of many calls, which the native part has summed up."""
        if self.count:
            least = min(first, least)
        self.merge(Times(count, total, first, least, most, classes))

    def merge(self, other: Times) -> None:
        """Add the times of other calls, which came later."""
        if not other.count:
            return
        if not self.count:
            self.first = other.first
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        self.count += other.count
        self.total += other.total
        for number, count in other.classes.items():
            self.classes[number] = self.classes.get(number, 0) + count

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def warm(self) -> float:
        """The least time after the first call; the first where there is no other."""
        return self.least if self.least != float("inf") else self.first

    def percentile(self, part: float) -> float:
        """The percentile of a share of the calls, within 1 %."""
        left = part * self.count
        for number in sorted(self.classes):
            left -= self.classes[number]
            if left <= 0:
                return min(max(exp(number / _STEPS), min(self.first, self.least)), self.most)
        return 0.0


@dataclass(frozen=True)
class Kind:
    """The common properties of the calls of a group."""

    op: str
    shape: str  # types and shapes of the arguments
    module: str
    site: Site | None


@dataclass
class Group:
    """The times of one kind of calls, and the work of each of them."""

    kind: Kind
    flops: float = 0.0  # of a call
    backward_flops: float = 0.0
    bytes: float = 0.0
    collective: Collective | None = None
    backward_bytes: float = 0.0  # of a kernel that the backward pass calls
    forward: Times = field(default_factory=Times)
    backward: Times = field(default_factory=Times)


@dataclass
class Line:
    """A row of a summary: calls that share an operator, a shape, a module or a line."""

    name: str
    forward: Times = field(default_factory=Times)
    backward: Times = field(default_factory=Times)
    flops: float = 0.0
    flops_ms: float = 0.0  # time of the calls with a known number of operations
    bytes: float = 0.0
    bytes_ms: float = 0.0
    share: float = 0.0

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total

    @property
    def calls(self) -> int:
        return self.forward.count or self.backward.count

    @property
    def gflops(self) -> float:
        return self.flops / self.flops_ms / 1e6 if self.flops_ms else 0.0

    @property
    def gbytes(self) -> float:
        return self.bytes / self.bytes_ms / 1e6 if self.bytes_ms else 0.0


_NAMES: dict[View, Callable[[Kind], str]] = {
    "op": lambda kind: kind.op,
    "shape": lambda kind: f"{kind.op} {kind.shape}",
    "module": lambda kind: kind.module or "(outside of modules)",
    "line": lambda kind: kind.site.short if kind.site else "(unknown line)",
}


def summed(groups: Iterable[Group], by: View, nested: bool = False) -> list[Line]:
    """Merge groups by operator, shape, module or line, the slowest first; `nested`: calls contain
    calls.
    """
    lines: dict[Hashable, Line] = {}
    for group in groups:
        name = _NAMES[by](group.kind)
        line = lines.setdefault(name, Line(name))
        line.forward.merge(group.forward)
        line.backward.merge(group.backward)
        if group.flops:
            line.flops += group.flops * group.forward.count
            line.flops += group.backward_flops * group.backward.count
            line.flops_ms += group.forward.total
            line.flops_ms += group.backward.total if group.backward_flops else 0.0
        if group.bytes:
            line.bytes += group.bytes * group.forward.count
            line.bytes += group.backward_bytes * group.backward.count
            line.bytes_ms += group.forward.total
            line.bytes_ms += group.backward.total if group.backward_bytes else 0.0
    result = sorted(lines.values(), key=lambda line: -line.total)
    every = [line.total for line in result]
    whole = max(every, default=0.0) if nested else sum(every)
    for line in result:
        line.share = line.total / whole if whole else 0.0
    return result
