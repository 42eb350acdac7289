# SPDX-License-Identifier: Apache-2.0
"""Times of many calls in bounded memory, in groups of calls with equal types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, Literal

import torch
from torch import Tensor

from deeplink.i18n import _
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

    def merge(self, other: Times, later: bool = False) -> None:
        """Add the times of other calls; `later`: the first of them has had its warm-up, too."""
        if not other.count:
            return
        if not self.count:
            self.first = other.first
        elif later:
            self.least = min(self.least, other.first)
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
        remaining = part * self.count
        for number in sorted(self.classes):
            remaining -= self.classes[number]
            if remaining <= 0:
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
    "module": lambda kind: kind.module or _("(outside of modules)"),
    "line": lambda kind: kind.site.short if kind.site else "(unknown line)",
}


def summed(groups: Iterable[Group], by: View, nested: bool = False) -> list[Line]:
    """Merge groups, the slowest first. `nested`: calls contain other calls."""
    lines: dict[Hashable, Line] = {}
    for group in groups:
        name = _NAMES[by](group.kind)
        line = lines.setdefault(name, Line(name))
        line.forward.merge(group.forward)
        line.backward.merge(group.backward)
        forward, backward = group.forward, group.backward
        if group.flops:
            line.flops += group.flops * forward.count + group.backward_flops * backward.count
            line.flops_ms += forward.total + (backward.total if group.backward_flops else 0.0)
        if group.bytes:
            line.bytes += group.bytes * forward.count + group.backward_bytes * backward.count
            line.bytes_ms += forward.total + (backward.total if group.backward_bytes else 0.0)
    result = sorted(lines.values(), key=lambda line: -line.total)
    every = [line.total for line in result]
    whole = max(every, default=0.0) if nested else sum(every)
    for line in result:
        line.share = line.total / whole if whole else 0.0
    return result


# The texts of types and shapes: calls with equal texts are of one kind.


def text_of(value: Any) -> str:
    """Types and shapes of tensors, plain values, types of others: `float32(4, 128, 256), 2`."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{tuple(value.shape)}".replace(",)", ")")
    if isinstance(value, (tuple, list)):
        return ", ".join(filter(None, map(text_of, value)))
    if isinstance(value, dict):
        return ", ".join(f"{name}={text_of(item)}" for name, item in value.items())
    if value is None or isinstance(
        value, (bool, int, float, str, slice, torch.dtype, torch.device)
    ):
        return str(value)
    return type(value).__name__


def is_brief(name: str) -> bool:
    """Whether the text of an operator's lists has their first and last items only."""
    return name.startswith("torch._foreach_")


def call_text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of a call's arguments."""
    if not is_brief(name):
        return text_of((*args, kwargs))
    return ", ".join(map(_brief, (*args, *kwargs.values())))


def _brief(value: Any) -> str:
    """The text of an argument of an optimizer, whose numbers change in each step."""
    if isinstance(value, (tuple, list)) and value:
        return f"[{len(value)}: {_brief(value[0])} … {_brief(value[-1])}]"
    return "float" if isinstance(value, float) else text_of(value)
