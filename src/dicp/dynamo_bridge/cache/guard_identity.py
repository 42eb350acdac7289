# SPDX-License-Identifier: Apache-2.0
"""Names of functions and modules that a trace calls, in place of torch's guards on their identity.

torch stores a trace without its guards on object identity, because another process has other
objects. An object reachable from a module's globals has a name, which is checked once when a later
process reads the trace. An object reached from an argument (a function passed to a model) has no
name, and its trace is not stored.
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
IMPORTED, BUILTINS = "__import_", "__builtins_dict__"  # dynamo's own names of its helpers


@dataclass(frozen=True)
class Named:
    """A path from a module's globals, and a description of the object."""

    module: str
    source: str
    found: tuple[Any, ...]

    def holds(self) -> bool:
        """Whether the path leads to an equal object in this process."""
        try:
            return _described(*_reached(self.module, self.source)) == self.found
        except (AttributeError, KeyError):
            return False


def named(sources: Iterable[str], scope: Mapping[str, Any]) -> tuple[Named, ...] | None:
    """Resolve the sources of guards in a function's globals; None where one has no name."""
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
    """Return the object, and its location among torch's own objects, which are determined by
    torch's
    version.
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
    """Return what identifies an object in any process; empty where nothing does."""
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not callable(value):
        return ()
    code, bound = getattr(value, "__code__", None), getattr(value, "__self__", None)
    holds = getattr(value, "__closure__", None) or not isinstance(bound, STATELESS)
    if holds and not place:
        return ()  # its name does not determine its content
    line = code.co_firstlineno if isinstance(code, types.CodeType) else 0
    return (type(value).__name__, str(value.__module__), name, line, place)
