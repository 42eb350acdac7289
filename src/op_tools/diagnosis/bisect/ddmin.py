# SPDX-License-Identifier: Apache-2.0
"""The smallest set of things with which a check passes, by as few checks as possible.

It is taken that more of them never hurt: what passes with a set passes with a larger one. Then one
thing among n is found by log2(n) checks and one to confirm it, each further one by as many again.
Where that is not so, what is found still passes, and none of it can be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

Check = Callable[[frozenset[Hashable]], bool]
Left = Callable[[int], None]


class Exhausted(Exception):
    """No more checks may be made; `smallest` is the smallest set that is known to pass."""

    def __init__(self, smallest: list[Hashable]) -> None:
        super().__init__(f"{len(smallest)} things are left")
        self.smallest = smallest


class Search:
    """One search over `items`, with which all together the check passes, and with none fails."""

    def __init__(
        self,
        items: Sequence[Hashable],
        check: Check,
        *,
        at_most: int = 1000,
        left: Left = lambda count: None,
    ) -> None:
        self._items = list(dict.fromkeys(items))
        self._check = check
        self._at_most = at_most
        self._left = left  # told before each check how many are left if one thing is to be found
        self._known: dict[frozenset[Hashable], bool] = {
            frozenset(self._items): True,
            frozenset(): False,
        }
        self.checks = 0

    def run(self, suspects: Sequence[Hashable] = ()) -> list[Hashable]:
        """The set, in the order of the items. Suspects are tried first, alone; if they are not the
        ones, that costs one check.
        """
        first = [item for item in dict.fromkeys(suspects) if item in self._items]
        rest = first + [item for item in self._items if item not in first]
        low = 0
        if first and len(first) < len(rest):
            if self._passes(first, _rounds(len(first)) + 2):
                rest = first
            else:
                low = len(first)
        found = self._needed(rest, low)
        return sorted(self._trimmed(found), key=self._items.index)

    def _needed(self, rest: list[Hashable], low: int) -> list[Hashable]:
        """Known: with `found` and `rest` it passes, with `found` and `rest[:low]` it fails."""
        found: list[Hashable] = []
        while rest:
            high = len(rest)
            while high - low > 1:
                middle = (low + high) // 2
                if self._passes(found + rest[:middle], _rounds(high - low) + 1):
                    high = middle
                else:
                    low = middle
            found.append(rest[high - 1])
            rest, low = rest[: high - 1], 0
            if rest and self._passes(found, 1):
                break
        return found

    def _trimmed(self, found: list[Hashable]) -> list[Hashable]:
        """Without what is not needed after all."""
        for item in list(found):
            fewer = [other for other in found if other is not item]
            if len(found) > 1 and self._passes(fewer, len(found)):
                found = fewer
        return found

    def _passes(self, some: Sequence[Hashable], left: int) -> bool:
        key = frozenset(some)
        if key not in self._known:
            if self.checks >= self._at_most:
                raise Exhausted(self._smallest())
            self._left(left)
            self.checks += 1
            self._known[key] = self._check(key)
        return self._known[key]

    def _smallest(self) -> list[Hashable]:
        passing = [key for key, passed in self._known.items() if passed]
        fewest = min(passing, key=lambda key: len(key))
        return sorted(fewest, key=self._items.index)


def _rounds(count: int) -> int:
    return math.ceil(math.log2(max(1, count)))
