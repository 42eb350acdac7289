# SPDX-License-Identifier: Apache-2.0
"""Find a smallest set of items with which a check passes, by few checks.

The search assumes that a superset of a passing set passes, too. Then it needs log2(n) checks and
one confirmation for one item among n, and as many for each further item. Without the assumption,
the check still passes with the result, and with none of its items left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

Check = Callable[[frozenset[Hashable]], bool]
Left = Callable[[int], None]


class Exhausted(Exception):
    """The limit of checks is reached; `smallest` is the smallest passing set so far."""

    def __init__(self, smallest: list[Hashable]) -> None:
        super().__init__(f"{len(smallest)} things are left")
        self.smallest = smallest


class Search:
    """A search over `items`: the check passes with all of them, and fails with none."""

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
        self._left = left  # called before each check with the number of remaining candidates
        self._known: dict[frozenset[Hashable], bool] = {
            frozenset(self._items): True,
            frozenset(): False,
        }
        self.checks = 0

    def run(self, suspects: Sequence[Hashable] = ()) -> list[Hashable]:
        """Return the set, in the order of the items. Suspects are tried first; wrong ones cost one
        check.
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
        """Find one more needed item. The check passes with `found` and `rest`, and fails with
        `found` and `rest[:low]`.
        """
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
        """Leave out the items that turn out not to be needed."""
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
