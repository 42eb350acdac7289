# SPDX-License-Identifier: Apache-2.0
"""torch.cuda, mapped by the table: each name by its rule, and undone with the rest."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch

from ditorch import calls, host_streams, legacy_types, synthesis, table
from ditorch.patches import Patches
from ditorch.table import Row
from ditorch.target import Target

# arguments that name a device; only they are mapped
DEVICES = ("device", "peer_device")
_ABSENT = object()

Call = Callable[..., Any]


@dataclass(frozen=True)
class _Name:
    """A name of this torch's torch.cuda, with its row."""

    row: Row
    owner: ModuleType
    attribute: str
    value: Any


def apply(patches: Patches, target: Target) -> None:
    """Applies every row; a name that this torch does not have is passed over."""
    for module in (target.module, sys.modules.get(target.vendor.device_module)):
        calls.belongs_inside(module)
    patches.later(calls.reset)
    moved: dict[int, Any] = {}  # what could not be changed in place, by identity
    for name in _present():
        replacement = _RULES[name.row.rule](name, target)
        if replacement is _ABSENT:
            continue
        if not callable(name.value):
            patches.set(name.owner, name.attribute, replacement)
        elif isinstance(name.value, type) and not isinstance(replacement, type):
            _set_constructor(patches, name.value, replacement)
        elif not _swap(patches, name.value, replacement):
            moved[id(name.value)] = _dressed(replacement, name.value)
    _set_everywhere(patches, moved)
    _set_tensor_classes(patches, moved)
    for kind in ("Stream", "Event"):
        _set_handle(patches, target, kind)
    if not target.has_index:
        patches.set(torch.Tensor, "record_stream", host_streams.record_stream)


def _present() -> list[_Name]:
    return [found for row in table.rows().values() if (found := _look_up(row)) is not None]


def _look_up(row: Row) -> _Name | None:
    module, _, attribute = row.name.rpartition(".")
    try:
        owner = importlib.import_module(f"torch.cuda.{module}" if module else "torch.cuda")
    except ImportError:  # a submodule of another torch version
        return None
    value = vars(owner).get(attribute, _ABSENT)
    return None if value is _ABSENT else _Name(row, owner, attribute, value)


# The rules: each returns what the name becomes, or _ABSENT to leave it.


def _keep(name: _Name, target: Target) -> Any:
    return _ABSENT


def _direct(name: _Name, target: Target) -> Any:
    """The vendor's name, else our own, else unsupported. On plain CPU our own comes first."""
    row = name.row
    theirs = _vendors(row, target)
    if row.fallback and (theirs is _ABSENT or not target.has_index):
        if not callable(name.value):
            return _function(row.fallback)(target)
        return _recorded(row, _function(row.fallback), target)
    if theirs is _ABSENT:
        return _unsupported(name, target)
    return _adapted(name, theirs, target) if callable(theirs) else theirs


def _class(name: _Name, target: Target) -> Any:
    """A class that makes the vendor's objects, and whose instances are the vendor's."""
    theirs = _vendors(name.row, target)
    if not target.has_index or not isinstance(theirs, type):
        theirs = _function(name.row.fallback) if name.row.fallback else _ABSENT
    if theirs is _ABSENT:
        return _unsupported(name, target)
    return _stand_in(name, theirs, _adapted(name, theirs, target))


def _synthesised(name: _Name, target: Target) -> Any:
    return _recorded(name.row, _function(name.row.target), target)


def _constant(name: _Name, target: Target) -> Any:
    value, full_name = ast.literal_eval(name.row.target), name.row.full_name
    if not callable(name.value):
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.used(full_name)
        return copy.copy(value)

    return call


def _noop(name: _Name, target: Target) -> Any:
    return _recorded(name.row, synthesis.nothing, target)


def _unsupported(name: _Name, target: Target) -> Any:
    row = name.row
    if row.target:  # it may be made, as modules do when they are imported, but not used
        return _recorded(row, _function(row.target), target)
    neutral = ast.literal_eval(row.neutral) if row.neutral else None

    def call(*args: Any, **kwargs: Any) -> Any:
        return calls.missed(row.full_name, row.reason, copy.copy(neutral), not row.neutral)

    return _stand_in(name, name.value, call) if isinstance(name.value, type) else call


def _type(name: _Name, target: Target) -> Any:
    return legacy_types.make(name.row.name, target, name.value)


_RULES: Mapping[str, Callable[[_Name, Target], Any]] = {
    "direct": _direct,
    "class": _class,
    "synthesised": _synthesised,
    "constant": _constant,
    "noop": _noop,
    "unsupported": _unsupported,
    "type": _type,
    "keep": _keep,
}


def missing(row: Row, target: Target) -> str | None:
    """The value that a call returns after a warning, "" where it raises; None: it is served.

    By the decisions of the rules above, without calling anything.
    """
    if row.rule == "unsupported":
        return "" if row.target else row.neutral  # what row.target makes raises when it is used
    if row.rule not in ("direct", "class"):
        return None
    theirs = _vendors(row, target)
    if row.rule == "class" and not (target.has_index and isinstance(theirs, type)):
        theirs = _ABSENT
    if row.fallback and (theirs is _ABSENT or not target.has_index):
        return row.neutral or None  # a fallback with a neutral value warns and returns it
    return row.neutral if theirs is _ABSENT else None


# What the rules are made of.


def _vendors(row: Row, target: Target) -> Any:
    """The vendor's object of that name, dots and all."""
    found: Any = target.module
    for part in (row.target or row.name).split("."):
        found = getattr(found, part, _ABSENT)
    return found


def _function(name: str) -> Any:
    return getattr(synthesis, name, None) or getattr(host_streams, name)


def _recorded(row: Row, function: Call, target: Target) -> Call:
    """Our own function with the target, remembered as used."""
    full_name = row.full_name

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.used(full_name)
        return function(target, *args, **kwargs)

    return call


def _adapted(name: _Name, theirs: Call, target: Target) -> Call:
    """The vendor's function with CUDA's arguments: devices mapped, what it lacks left out."""
    full_name, ours = name.row.full_name, _parameters(name.value)
    if ours is None:
        return _passed_on(full_name, theirs)
    accepted = _parameters(theirs)
    devices = [index for index, key in enumerate(ours) if key in DEVICES]
    if accepted is None or len(accepted) >= len(ours):
        if not ours:
            return _without_arguments(full_name, theirs)
        if list(ours) == ["device"]:
            return _with_device(full_name, theirs, target)
        accepted = None  # all of them, by position

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.used(full_name)
        given = list(args)
        for index in devices:
            if index < len(given):
                given[index] = _device(target, given[index])
        for key in DEVICES:
            if key in kwargs:
                kwargs[key] = _device(target, kwargs[key])
        if accepted is None:
            return theirs(*given, **kwargs)
        named = dict(zip(ours, given, strict=False)) | kwargs
        for key in [key for key in named if key in ours and key not in accepted]:
            if named.pop(key) != ours[key].default:
                calls.missed(f"{full_name}({key}=…)", f"{target.device} has no {key}; leave it out")
        return theirs(**named)

    return call


def _without_arguments(full_name: str, theirs: Call) -> Call:
    def call() -> Any:
        calls.used(full_name)
        return theirs()

    return call


def _with_device(full_name: str, theirs: Call, target: Target) -> Call:
    def call(device: Any = None) -> Any:
        calls.used(full_name)
        if device is None or type(device) is int:  # hot path
            return theirs(device)
        return theirs(_device(target, device))

    return call


def _device(target: Target, device: Any) -> Any:
    return device.idx if isinstance(device, torch.cuda.device) else target.name(device)


def _passed_on(full_name: str, theirs: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.used(full_name)
        return theirs(*args, **kwargs)

    return call


def _parameters(function: Any) -> dict[str, inspect.Parameter] | None:
    """The named parameters; None when they are unknown."""
    if inspect.isbuiltin(function):
        return None  # in a CUDA build: what C functions say of their signatures is not so
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return None
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key: value for key, value in found.items() if value.kind not in variable}


def _stand_in(name: _Name, theirs: type, make: Call) -> type:
    """A subclass of the vendor's class in name only: what it makes and knows is the vendor's.

    Where there is no vendor's class it stands for CUDA's own, which cannot be made.
    """
    kind: Any = type(theirs)

    class Kind(kind):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is stand_in or theirs is name.value:
                return make(*args, **kwargs)
            return super().__call__(*args, **kwargs)  # a program's own subclass

        def __instancecheck__(cls, instance: object) -> bool:
            if cls is stand_in:
                return isinstance(instance, theirs)
            return bool(super().__instancecheck__(instance))

        def __subclasscheck__(cls, subclass: type) -> bool:
            if cls is stand_in:
                return issubclass(subclass, theirs)
            return bool(super().__subclasscheck__(subclass))

    stand_in: type = Kind(
        name.attribute,
        (theirs,),
        {"__module__": name.value.__module__, "__doc__": theirs.__doc__},
    )
    return stand_in


# How a name is changed.


def _swap(patches: Patches, function: Any, replacement: Any) -> bool:
    """In place, so that names taken beforehand see it; not for what is not plain Python."""
    plain = isinstance(function, FunctionType) and function.__name__.isidentifier()
    return plain and not isinstance(replacement, type) and patches.swap(function, replacement)


def _set_constructor(patches: Patches, kind: type, replacement: Call) -> None:
    """A class that stays itself gets another constructor."""

    @functools.wraps(vars(kind)["__init__"])
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        replacement(self, *args, **kwargs)

    patches.set(kind, "__init__", construct)


def _dressed(replacement: Any, before: Any) -> Any:
    """The replacement with the name, the text and the signature of what it replaces."""
    if isinstance(replacement, type):
        if _parameters(before) is not None:
            replacement.__signature__ = inspect.signature(before)  # type: ignore[attr-defined]
        return replacement
    return functools.update_wrapper(replacement, before)


def _set_handle(patches: Patches, target: Target, kind: str) -> None:
    """The vendor's streams and events say their handle under CUDA's name, too."""
    theirs, name = getattr(target.module, kind, None), kind.lower()
    if not target.has_index or not isinstance(theirs, type) or hasattr(theirs, f"cuda_{name}"):
        return
    with contextlib.suppress(TypeError):  # a class written in C takes no attributes
        own, number = f"{target.device}_{name}", f"{name}_id"
        handle = property(lambda self: getattr(self, own, None) or getattr(self, number))
        patches.set(theirs, f"cuda_{name}", handle)


def _set_tensor_classes(patches: Patches, moved: Mapping[int, Any]) -> None:
    """torch's set of legacy tensor types has ours in the place of CUDA's."""
    classes = torch._tensor_classes
    before = set(classes)

    def fill(wanted: set[Any]) -> None:
        classes.clear()
        classes.update(wanted)

    fill({moved.get(id(kind), kind) for kind in before})
    patches.later(lambda: fill(before))


def _set_everywhere(patches: Patches, moved: Mapping[int, Any]) -> None:
    """In torch.cuda and wherever a module took the object from there."""
    modules: list[Any] = list(sys.modules.values())  # some put other things there
    for module in modules:
        if not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in moved:
                patches.set(module, attribute, moved[id(value)])
