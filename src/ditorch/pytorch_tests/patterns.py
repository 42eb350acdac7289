# SPDX-License-Identifier: Apache-2.0
"""The pattern of `--only`: its alternatives that match no test, with similar names of tests."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

SUGGESTED = 3  # names for one alternative

# (a|b) without inner parentheses, and without (?…) that means something else
_GROUP = re.compile(r"\((?:\?:)?(?!\?)([^()\[\]]*\|[^()\[\]]*)\)")
_PREFIX = re.compile(r"^test_(?:forward_|backward_|forward_backward_|steps_)?")
_SUFFIX = re.compile(r"_(?:cuda|cpu|dipu|npu)(?:_.*)?$")


def check(only: str) -> None:
    """Raise DeeplinkError for a pattern that is no regular expression."""
    try:
        re.compile(only)
    except re.error as error:
        raise DeeplinkError(
            _("--only {only!r} is not a regular expression: {error}.").format(
                only=only, error=error
            ),
            _("for example: --only 'forward_(add|mul)_'"),
        ) from None


def unused(only: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each alternative of the pattern that matches none of the names."""
    names = list(names)
    for part, pattern in _alternatives(only):
        if any(re.search(pattern, name) for name in names):
            continue
        near = _near(part, names)
        hint = f"; similar: {', '.join(near)}" if near else ""
        yield f"--only: {part!r} matches no test{hint}"


def _alternatives(only: str) -> Iterator[tuple[str, str]]:
    """Yield each alternative with the whole pattern in which only this one is left."""
    groups = list(_GROUP.finditer(only))
    for group in groups:
        for part in group[1].split("|"):
            yield part, f"{only[: group.start()]}(?:{part}){only[group.end() :]}"
    if "(" not in only:  # parts of a nested group are no patterns of their own
        for part in only.split("|"):
            yield part, part


def _near(part: str, names: Iterable[str]) -> list[str]:
    word = re.sub(r"\W+", "", part).strip("_").lower()
    plain = sorted({_SUFFIX.sub("", _PREFIX.sub("", name.rpartition("::")[2])) for name in names})
    holding = [name for name in plain if word and word in name.lower()]
    holding.sort(key=len)
    return (holding or difflib.get_close_matches(word, plain, n=SUGGESTED))[:SUGGESTED]
