# SPDX-License-Identifier: Apache-2.0
"""The patch engine: patches preserve identity where possible, and undo restores exactly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

_MISSING = object()


@dataclass
class Patches:
    """The applied patches in order; `undo` reverts them in reverse order."""

    _undo: list[Callable[[], None]] = field(default_factory=list)

    def swap(self, function: Callable[..., Any], replacement: Callable[..., Any]) -> bool:
        """Make a Python function run `replacement`, keeping the function object itself.

        Existing references, pickles and signatures stay valid. Return False when the function
        cannot be
        swapped (it is not Python, or it closes over variables).
        """
        if not isinstance(function, FunctionType) or function.__code__.co_freevars:
            return False
        name = f"__ditorch_{function.__qualname__.replace('.', '_')}_{id(function)}"
        code, before = _trampoline(function, name), function.__code__
        function.__globals__[name] = replacement
        function.__code__ = code

        def undo() -> None:
            function.__code__ = before
            function.__globals__.pop(name, None)

        self._undo.append(undo)
        return True

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class; undo restores or removes it."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)

        def undo() -> None:
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Replace a function in place where that is possible, else set the attribute."""
        current = inspect.getattr_static(owner, name, None)
        if not isinstance(current, FunctionType) or not self.swap(current, replacement):
            self.set(owner, name, replacement)

    def later(self, undo: Callable[[], None]) -> None:
        """Register another function that `undo` calls."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Revert all patches, the last one first."""
        while self._undo:
            self._undo.pop()()


def twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function to another object,
    so that the first can be swapped and the copy still called.
    """
    if not isinstance(function, FunctionType):
        return function
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _trampoline(function: FunctionType, target: str) -> CodeType:
    """Create code with the function's own signature that calls the global
    `target` with its arguments.
    """
    parameters: list[str] = []
    arguments: list[str] = []
    keyword_only = False
    # of the twin: a function's __signature__ may differ from the parameters of its code
    for parameter in inspect.signature(twin(function)).parameters.values():
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            parameters.append(f"*{name}")
            arguments.append(f"*{name}")
            keyword_only = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            parameters.append(f"**{name}")
            arguments.append(f"**{name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
                parameters.append("*")
                keyword_only = True
            # the defaults of the function are kept
            default = "" if parameter.default is parameter.empty else "=None"
            parameters.append(name + default)
            is_keyword = parameter.kind is parameter.KEYWORD_ONLY
            arguments.append(f"{name}={name}" if is_keyword else name)
    namespace: dict[str, Any] = {}
    source = f"def {function.__name__}({', '.join(parameters)}):\n"
    source += f"    return {target}({', '.join(arguments)})\n"
    exec(compile(source, f"<ditorch {function.__qualname__}>", "exec"), namespace)
    made = namespace[function.__name__]
    assert isinstance(made, FunctionType)  # the source defines one function
    return made.__code__
