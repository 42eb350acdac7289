"""Which calls a tool sees: lists of names with the classic meaning, and a selection beside them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

import torch

from deeplink import settings
from deeplink.errors import SettingError
from op_tools import names
from op_tools.call import Call


@dataclass
class Names:
    """A list of operators: full names, or regular expressions that match a full name.

    An entry that is the whole of an aten operator without its overload matches all of them.
    """

    entries: tuple[str, ...]
    matched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._patterns = [(entry, _pattern(entry)) for entry in self.entries]

    def __contains__(self, name: str) -> bool:
        found = [entry for entry, pattern in self._patterns if _matches(entry, pattern, name)]
        self.matched.update(found)
        return bool(found)

    @property
    def unmatched(self) -> list[str]:
        """Entries that no operator has matched so far."""
        return [entry for entry in self.entries if entry not in self.matched]


def _matches(entry: str, pattern: re.Pattern[str], name: str) -> bool:
    if name in (entry, names.canonical(entry)):
        return True
    if name.startswith("aten.") and entry == name.rsplit(".", 1)[0]:
        return True
    return pattern.fullmatch(name) is not None


def _pattern(entry: str) -> re.Pattern[str]:
    try:
        return re.compile(entry)
    except re.error as error:
        raise SettingError(
            f"{entry!r} is no name of an operator and no regular expression: {error}.",
            "write a full name such as torch.nn.functional.linear, or a pattern such as "
            "'torch.Tensor.add.*'; for every operator, '.*'.",
        ) from None


def unknown(entries: Iterable[str]) -> list[str]:
    """Of plain names, those that torch does not know, each with the nearest that it does."""
    plain = [e for e in entries if re.fullmatch(r"[A-Za-z_][\w.]*", e)]
    return [
        f"{entry!r}{names.suggestion(entry)}"
        for entry in plain
        if entry.startswith("torch.") and not _exists(entry)
    ]


def _exists(entry: str) -> bool:
    if entry in names.known():
        return True
    try:
        names.resolve(entry)
    except LookupError:
        return False
    return True


@dataclass(frozen=True)
class Steps:
    """Steps and ranges of steps, "3,10-20,100-"; empty means all of them."""

    ranges: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def parse(text: str) -> Steps:
        ranges: list[tuple[int, float]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = re.fullmatch(r"(\d+)(-(\d*))?", part)
            if match is None:
                raise ValueError(f"{part!r} is neither a step nor a range of them")
            first = int(match[1])
            end = first if match[2] is None else float(match[3] or "inf")
            ranges.append((first, end))
        return Steps(tuple(ranges))

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
    """Which of the calls that the lists let through are worked on; the default is all of them."""

    steps: Steps = Steps()
    ranks: Sequence[int] = ()  # empty: every rank
    modules: Sequence[str] = ()  # patterns of module paths, as in "blocks.*.attn"
    sites: Sequence[str] = ()  # patterns of "file.py:line"
    first: int = 0  # of each signature, so many; 0: no limit
    every: int = 1  # of each operator, every k-th

    @property
    def is_all(self) -> bool:
        return self == Selection()


class Selector:
    """A selection with its counts; one for each start of a tool. Safe from any thread."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._is_all = selection.is_all
        self._counts: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> bool:
        if self._is_all:  # hot path
            return True
        chosen = self._selection
        if call.step not in chosen.steps or (chosen.ranks and _rank() not in chosen.ranks):
            return False
        if chosen.modules and not any(fnmatch(call.module, m) for m in chosen.modules):
            return False
        if chosen.sites and not _at(call, chosen.sites):
            return False
        return self._counted(call)

    def _counted(self, call: Call) -> bool:
        chosen = self._selection
        if chosen.first <= 0 and chosen.every <= 1:
            return True
        key: Hashable = signature(call) if chosen.first > 0 else call.name
        with self._lock:
            seen = self._counts[key]
            self._counts[key] += 1
        if seen % max(1, chosen.every):
            return False
        return chosen.first <= 0 or seen // max(1, chosen.every) < chosen.first


def _rank() -> int:
    group = torch.distributed
    return group.get_rank() if group.is_available() and group.is_initialized() else settings.rank()


def _at(call: Call, sites: Sequence[str]) -> bool:
    if call.site is None:
        return False
    texts = (call.site.short, f"{call.site.file}:{call.site.line}", call.site.file)
    return any(fnmatch(text, site) for text in texts for site in sites)


def signature(call: Call) -> Hashable:
    """What two calls that do the same work have in common: shapes, types and plain values."""
    return call.name, _of(call.args), _of(call.kwargs)


def _of(value: object) -> Hashable:
    if isinstance(value, torch.Tensor):
        strides = () if value.is_nested or value.layout != torch.strided else value.stride()
        return tuple(value.shape), value.dtype, strides, value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple(_of(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _of(item)) for key, item in value.items())
    return value if isinstance(value, (int, float, str, bool)) else repr(value)[:80]
