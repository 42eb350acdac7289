# SPDX-License-Identifier: Apache-2.0
"""Patches of the modules of one package, each with its undo."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _


class Patches:
    """The patches of a package, and their undo."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.undoing: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Restore the package."""
        while self.undoing:
            self.undoing.pop()()

    def found(self, name: str) -> Any:
        """Return the object of `module:Class.method`; raise where this release does not have it."""
        module, _colon, path = name.partition(":")
        try:
            here: Any = importlib.import_module(module)
            for part in path.split("."):
                here = vars(here)[part]
        except (ImportError, KeyError) as error:
            raise DeeplinkError(
                _("{package} has no {name}: {kind}: {error}.").format(
                    package=self.package, name=name, kind=type(error).__name__, error=error
                ),
                _("this release of {package} is built otherwise than those that are known.").format(
                    package=self.package
                ),
            ) from error
        return here

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, or a global of a module."""
        before = vars(owner)[name]
        setattr(owner, name, value)
        self.undoing.append(functools.partial(setattr, owner, name, before))

    def replace(self, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by `make(function)`,
        in every module of the package that imports it.
        """
        function = self.found(name)
        made = make(function)
        functools.update_wrapper(made, function)
        attribute = name.rpartition(":")[2]
        for module in list(sys.modules.values()):
            inside = isinstance(module, ModuleType) and self._inside(module.__name__)
            if inside and vars(module).get(attribute) is function:
                self.set(module, attribute, made)

    def wrap(self, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a method by `make(method)`."""
        method = self.found(name)
        owner, _, attribute = name.rpartition(".")
        made = make(method)
        functools.update_wrapper(made, method)
        self.set(self.found(owner), attribute, made)

    def word(self, name: str, old: str, new: str) -> None:
        """Replace a constant, or a default, of a function in place,
        which affects every reference.
        """
        function = _plain(self.found(name))
        code, defaults = function.__code__, function.__defaults__
        changed = _exchanged(code, old, new)
        swapped = defaults and tuple(new if value == old else value for value in defaults)
        if changed is code and swapped == defaults:
            raise DeeplinkError(
                _("{name} does not contain {old!r}.").format(name=name, old=old),
                _("this release of {package} is built otherwise than those that are known.").format(
                    package=self.package
                ),
            )
        function.__code__, function.__defaults__ = changed, swapped

        def back() -> None:
            function.__code__, function.__defaults__ = code, defaults

        self.undoing.append(back)

    def _inside(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")


def _plain(found: Any) -> FunctionType:
    """Return the function inside of a staticmethod and of decorators."""
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        inner: Any = getattr(found, "__wrapped__", None)
        found = inner or getattr(found, "__func__")  # noqa: B009
    return found


def _exchanged(code: CodeType, old: str, new: str) -> CodeType:
    """Replace a constant in code; return the code itself where it does not contain the constant."""
    constants = tuple(
        _exchanged(c, old, new) if isinstance(c, CodeType) else new if c == old else c
        for c in code.co_consts
    )
    same = all(a is b for a, b in zip(constants, code.co_consts, strict=True))
    return code if same else code.replace(co_consts=constants)
