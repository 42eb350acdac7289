# SPDX-License-Identifier: Apache-2.0
"""torch.cuda, mapped by the table: each name is replaced by its rule, and restored by `undo`."""

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

# names of arguments that hold a device; other arguments are not mapped
DEVICES = ("device", "peer_device")
_ABSENT = object()

Call = Callable[..., Any]


@dataclass(frozen=True)
class _Name:
    """A name of the installed torch's torch.cuda, with its row."""

    row: Row
    owner: ModuleType
    attribute: str
    value: Any


def apply(patches: Patches, target: Target) -> None:
    """Apply every row; a name that the installed torch lacks is skipped."""
    for module in (target.module, sys.modules.get(target.vendor.device_module)):
        calls.belongs_inside(module)
    patches.later(calls.reset)
    moved: dict[int, Any] = {}  # objects that could not be changed in place, by identity
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


# The rules: each returns the replacement of a name, or _ABSENT to keep the name.


def _keep(name: _Name, target: Target) -> Any:
    return _ABSENT


def _direct(name: _Name, target: Target) -> Any:
    """Map to the vendor's name, else to ditorch's fallback, else to an unsupported call.

    On plain CPU the fallback has priority.
    """
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
    """Map a class: calling it creates the vendor's objects,
    and their instances are its instances.
    """
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
    if row.rule == "unsupported" and row.target:  # it may be created on import, but not used
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
    """Return the value of a call that warns, "" for a call that raises, None for a mapped name.

    Evaluates the rules above without calling anything.
    """
    if row.rule == "unsupported":
        return "" if row.target else row.neutral  # the object of row.target raises when it is used
    if row.rule not in ("direct", "class"):
        return None
    theirs = _vendors(row, target)
    if row.rule == "class" and not (target.has_index and isinstance(theirs, type)):
        theirs = _ABSENT
    if row.fallback and (theirs is _ABSENT or not target.has_index):
        return row.neutral or None  # a fallback with a neutral value warns and returns it
    return row.neutral if theirs is _ABSENT else None


# Building blocks of the rules.


def _vendors(row: Row, target: Target) -> Any:
    """Return the vendor's object of the first dotted name that exists; {DEVICE} is its name."""
    for name in (row.target or row.name).split():
        found: Any = target.module
        for part in name.replace("{DEVICE}", target.device.upper()).split("."):
            found = getattr(found, part, _ABSENT)
        if found is not _ABSENT:
            return found
    return _ABSENT


def _function(name: str) -> Any:
    return getattr(synthesis, name, None) or getattr(host_streams, name)


def _recorded(row: Row, function: Call, target: Target) -> Call:
    """Wrap ditorch's function: bind the target and record each use."""
    full_name = row.full_name

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.used(full_name)
        return function(target, *args, **kwargs)

    return call


def _adapted(name: _Name, theirs: Call, target: Target) -> Call:
    """Wrap the vendor's function for CUDA's arguments: map devices,
    drop arguments that it lacks.
    """
    full_name, ours = name.row.full_name, _parameters(name.value)
    if ours is None:
        return _passed_on(full_name, theirs)
    accepted = _parameters(theirs)
    renamed = _renamed(ours, accepted or {})
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
            return theirs(*given, **_with_names(kwargs, renamed))
        named = _with_names(dict(zip(ours, given, strict=False)) | kwargs, renamed)
        for key in [key for key in named if key in ours and key not in accepted]:
            if named.pop(key) != ours[key].default:
                calls.missed(f"{full_name}({key}=…)", f"{target.device} has no {key}; leave it out")
        return theirs(**named)

    return call


def _renamed(
    ours: Mapping[str, inspect.Parameter], theirs: Mapping[str, inspect.Parameter]
) -> dict[str, str]:
    """Map CUDA's names of required arguments to the vendor's at the same position."""
    required = inspect.Parameter.empty
    return {
        mine.name: other.name
        for mine, other in zip(ours.values(), theirs.values(), strict=False)
        if mine.name not in theirs and mine.default is required and other.default is required
    }


def _with_names(given: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    return {renamed.get(key, key): value for key, value in given.items()} if renamed else given


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
    """Return the named parameters; None when they are unknown."""
    if inspect.isbuiltin(function):
        return None  # in a CUDA build the signatures of C functions are incorrect
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return None
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key: value for key, value in found.items() if value.kind not in variable}


def _stand_in(name: _Name, theirs: type, make: Call) -> type:
    """Create a subclass of the vendor's class whose calls and instance checks use the vendor's
    class.

    Without a vendor's class it replaces CUDA's own class, which cannot be instantiated.
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


# Replacing a name.


def _swap(patches: Patches, function: Any, replacement: Any) -> bool:
    """Replace a function in place, so that existing references change too;
    False if not plain Python.
    """
    plain = isinstance(function, FunctionType) and function.__name__.isidentifier()
    return plain and not isinstance(replacement, type) and patches.swap(function, replacement)


def _set_constructor(patches: Patches, kind: type, replacement: Call) -> None:
    """Replace the constructor of a class that keeps its identity."""

    @functools.wraps(vars(kind)["__init__"])
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        replacement(self, *args, **kwargs)

    patches.set(kind, "__init__", construct)


def _dressed(replacement: Any, before: Any) -> Any:
    """Copy name, docstring and signature of the replaced object to the replacement."""
    if isinstance(replacement, type):
        if _parameters(before) is not None:
            replacement.__signature__ = inspect.signature(before)  # type: ignore[attr-defined]
        return replacement
    return functools.update_wrapper(replacement, before)


def _set_handle(patches: Patches, target: Target, kind: str) -> None:
    """Give the vendor's streams and events CUDA's name for their handle."""
    theirs, name = getattr(target.module, kind, None), kind.lower()
    if not target.has_index or not isinstance(theirs, type) or hasattr(theirs, f"cuda_{name}"):
        return
    with contextlib.suppress(TypeError):  # a class written in C accepts no attributes
        own, number = f"{target.device}_{name}", f"{name}_id"
        handle = property(lambda self: getattr(self, own, None) or getattr(self, number))
        patches.set(theirs, f"cuda_{name}", handle)


def _set_tensor_classes(patches: Patches, moved: Mapping[int, Any]) -> None:
    """Replace CUDA's legacy tensor types in torch's set of tensor types."""
    classes = torch._tensor_classes
    before = set(classes)

    def fill(wanted: set[Any]) -> None:
        classes.clear()
        classes.update(wanted)

    fill({moved.get(id(kind), kind) for kind in before})
    patches.later(lambda: fill(before))


def _set_everywhere(patches: Patches, moved: Mapping[int, Any]) -> None:
    """Replace an object in torch.cuda and in every module that imported it from there."""
    # some programs put other objects into sys.modules
    modules: list[Any] = list(sys.modules.values())
    for module in modules:
        if not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in moved:
                patches.set(module, attribute, moved[id(value)])
