# SPDX-License-Identifier: Apache-2.0
"""The calls that a tool works on: lists of operators, and a selection by step, module, line, …"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

import torch

from deeplink import settings
from op_tools.core import spelling
from op_tools.core.call import Call
from op_tools.core.call import signature as values_signature


@dataclass
class Names:
    """A list of operators, in any spelling that `core.spelling` reads, or patterns of names."""

    entries: tuple[str, ...]
    matched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._meanings = [spelling.read(entry) for entry in self.entries]

    def __contains__(self, name: str) -> bool:
        entries = [meaning.entry for meaning in self._meanings if meaning.matches(name)]
        self.matched.update(entries)
        return bool(entries)

    @property
    def unmatched(self) -> list[str]:
        """Entries that no operator has matched so far."""
        return [entry for entry in self.entries if entry not in self.matched]


@dataclass(frozen=True)
class Steps:
    """Steps and ranges of steps, "3,10-20,100-"; empty: all steps."""

    ranges: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def parse(text: str) -> Steps:
        return Steps(settings.ranges(text))

    def __contains__(self, step: int) -> bool:
        return not self.ranges or any(low <= step <= high for low, high in self.ranges)

    def __str__(self) -> str:
        def show(low: int, high: float) -> str:
            if low == high:
                return str(low)
            return f"{low}-" if high == float("inf") else f"{low}-{int(high)}"

        return ",".join(show(*pair) for pair in self.ranges)


@dataclass(frozen=True)
class Selection:
    """A selection among the calls of the listed operators; the default selects all calls."""

    steps: Steps = Steps()
    ranks: Sequence[int] = ()  # empty: every rank
    modules: Sequence[str] = ()  # patterns of module paths, as in "blocks.*.attn"
    sites: Sequence[str] = ()  # patterns of "file.py:line"
    first: int = 0  # the first calls of each signature; 0: no limit
    every: int = 1  # every k-th call of each operator

    @property
    def is_all(self) -> bool:
        return self == Selection()


class Selector:
    """A selection with its counts, for one start of a tool. Thread-safe."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._is_all = selection.is_all
        self._counts: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> bool:
        if self._is_all:  # hot path
            return True
        chosen = self._selection
        if call.step not in chosen.steps:
            return False
        if chosen.ranks:
            group = torch.distributed
            joined = group.is_available() and group.is_initialized()
            if (group.get_rank() if joined else settings.rank()) not in chosen.ranks:
                return False
        if chosen.modules and not any(fnmatch(call.module, m) for m in chosen.modules):
            return False
        if chosen.sites:
            site = call.site
            texts = (site.short, f"{site.file}:{site.line}", site.file) if site else ()
            if not any(fnmatch(text, pattern) for text in texts for pattern in chosen.sites):
                return False
        if chosen.first <= 0 and chosen.every <= 1:
            return True
        key: Hashable = (call.direction, signature(call)) if chosen.first > 0 else call.name
        with self._lock:
            count = self._counts[key]
            self._counts[key] += 1
        if count % max(1, chosen.every):
            return False
        return chosen.first <= 0 or count // max(1, chosen.every) < chosen.first


def signature(call: Call) -> Hashable:
    """A key for a call: equal for one operator with equal shapes, types and plain values."""
    return call.name, values_signature(call.args), values_signature(call.kwargs)
