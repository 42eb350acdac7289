# SPDX-License-Identifier: Apache-2.0
"""Functions and modules that a trace calls, by name, in place of torch's guards on their identity.

torch keeps a trace without the guards on which object it is that a name means: another process has
other objects. What is reached from a module's globals can be named; it is looked at once, when a
later process reads the trace. What is reached from an argument (a function that a model was given)
cannot, and its trace is not kept.
"""

from __future__ import annotations

import builtins
import re
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SOURCE = re.compile(r"G\['(\w+)'\]((?:\.\w+|\['\w+'\])*)")
STEP = re.compile(r"\.(\w+)|\['(\w+)'\]")
STATELESS = (type(None), type, types.ModuleType)  # what a function may be bound to
IMPORTED, BUILTINS = "__import_", "__builtins_dict__"  # dynamo's own names of what it needs


@dataclass(frozen=True)
class Named:
    """A way from a module's globals, and what was found there."""

    module: str
    source: str
    found: tuple[Any, ...]

    def holds(self) -> bool:
        """Whether the same is found there now."""
        try:
            return _described(*_reached(self.module, self.source)) == self.found
        except (AttributeError, KeyError):
            return False


def named(sources: Iterable[str], scope: Mapping[str, Any]) -> tuple[Named, ...] | None:
    """What these sources of guards mean in a function's globals; None where one has no name."""
    module = str(scope.get("__name__", ""))
    made = []
    for source in sources:
        try:
            found = _described(*_reached(module, source))
        except (AttributeError, KeyError):
            return None
        if not found:
            return None
        made.append(Named(module, source, found))
    return tuple(made)


def _reached(module: str, source: str) -> tuple[Any, str]:
    """The object, and the place among torch's own, which are the same by torch's version, that it
    was found at.
    """
    parsed = SOURCE.fullmatch(source)
    if parsed is None:
        raise KeyError(source)
    root, steps = parsed.groups()
    found: Any
    if root.startswith(IMPORTED):
        found = sys.modules[root.removeprefix(IMPORTED).replace("_dot_", ".")]
    elif root.startswith(BUILTINS):
        found = vars(builtins)
    else:
        found = vars(sys.modules[module])[root]
    place = ""
    for attribute, item in STEP.findall(steps):
        holder = getattr(found, "__name__", "") if isinstance(found, types.ModuleType) else ""
        place = f"{holder}.{attribute}" if holder.split(".")[0] == "torch" else ""
        found = getattr(found, attribute) if attribute else found[item]
    return found, place


def _described(value: Any, place: str) -> tuple[Any, ...]:
    """What tells an object from others in any process; nothing where nothing does."""
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not callable(value):
        return ()
    code, bound = getattr(value, "__code__", None), getattr(value, "__self__", None)
    holds = getattr(value, "__closure__", None) or not isinstance(bound, STATELESS)
    if holds and not place:
        return ()  # what it holds is not told by its name
    line = code.co_firstlineno if isinstance(code, types.CodeType) else 0
    return (type(value).__name__, str(value.__module__), name, line, place)
