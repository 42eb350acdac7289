# SPDX-License-Identifier: Apache-2.0
"""`apply_feature`: a tool on chosen functions of torch or another library, under a condition."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from types import ClassMethodDescriptorType, MethodType, ModuleType, TracebackType
from typing import Any, Self

from torch.overrides import get_overridable_functions

from deeplink.errors import nearest
from op_tools.capture.tool import OpCapture
from op_tools.compare.tool import OpAutoCompare
from op_tools.core import op_names, terminal
from op_tools.core.dispatch import Plan, run
from op_tools.core.tool import Tool
from op_tools.core.torch_patches import Patches
from op_tools.timing.tool import OpTimeMeasure
from op_tools.tools.dtype_cast import OpDtypeCast
from op_tools.tools.fallback import OpFallback
from op_tools.tools.observe import OpObserve
from op_tools.tools.overflow import OpOverflowCheck

Op = str | Callable[..., Any]

FEATURES: dict[str, type[Tool]] = {
    "fallback": OpFallback,
    "cast_dtype": OpDtypeCast,
    "op_capture": OpCapture,
    "autocompare": OpAutoCompare,
    "dump_op_args": OpObserve,
    "measure_op_time": OpTimeMeasure,
    "overflow_check": OpOverflowCheck,
}


def apply_feature(
    ops: Op | Sequence[Op],
    feature: str,
    condition_func: Callable[..., bool] = lambda *args, **kwargs: True,
    **options: Any,
) -> Applied:
    """Apply a tool to functions, where `condition_func` of a call's arguments is true.

    `undo()` of the result, or its `with` block, ends it. Of several features on one function the
    last one applied is outermost.
    """
    if feature not in FEATURES:
        raise ValueError(f"no feature {feature!r}; {nearest(feature, FEATURES)}")
    chosen = [ops] if isinstance(ops, str) or callable(ops) else list(ops)
    if not chosen or any(op == "" for op in chosen):
        raise ValueError(f"apply_feature needs the name of a function, found {ops!r}")
    applied = Applied()
    try:
        for op in chosen:
            applied.add(FEATURES[feature], op, condition_func, options)
    except BaseException:
        applied.undo()
        raise
    return applied


class Applied:
    """The tools and patches of one `apply_feature` call."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self._patched: list[tuple[_Patch, Tool]] = []

    def add(
        self, kind: type[Tool], op: Op, condition: Callable[..., bool], options: dict[str, Any]
    ) -> None:
        """Start a tool for one function. The modes of torch intercept functions of torch, so
        `apply_feature` replaces only functions of other libraries.
        """
        func, name = _function(op)
        if func in _overridable():
            self.tools.append(kind(ops=[name], condition=condition, **options).start())
            return
        owner, attribute = _owner(op, name)
        tool = kind(ops=[name], condition=condition, level="function", **options).start()
        self.tools.append(tool)
        if name not in tool.started.ops or name in tool.started.disabled:
            terminal.announce(tool, name, False)
            return
        patch = next((p for p in _patches if p.attributes.holds(owner, attribute)), None)
        patch = patch or _Patch(owner, attribute, func, name)
        self._patched.append((patch, tool))
        patch.add(tool)

    def undo(self) -> None:
        """Stop the tools and restore what was patched."""
        while self._patched:
            patch, tool = self._patched.pop()
            patch.remove(tool)
        while self.tools:
            self.tools.pop().stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


_patches: list[_Patch] = []  # those with a tool


class _Patch:
    """A replaced attribute of a module, a class or an instance, and the tools around its function.

    All features on one function share one patch, so they can be undone in any order.
    """

    def __init__(self, owner: Any, attribute: str, func: Callable[..., Any], name: str) -> None:
        self.plan = Plan("function", name, ())
        self.attributes = Patches()
        is_own = attribute in vars(owner)
        self._set(owner, attribute, self._replacement(owner, attribute, func))
        if is_own or getattr(func, "__self__", None) is owner:  # else the function is a parent's
            self._set_aliases(owner, func, getattr(owner, attribute))

    def add(self, tool: Tool) -> None:
        """Put a tool around the function and its other tools."""
        self.plan = Plan("function", self.plan.name, (tool, *self.plan.tools))
        if self not in _patches:
            _patches.append(self)

    def remove(self, tool: Tool) -> None:
        """Remove a tool, and restore the attributes after the last one."""
        others = tuple(one for one in self.plan.tools if one is not tool)
        self.plan = Plan("function", self.plan.name, others)
        if not others:
            _patches.remove(self)
            self.attributes.undo()

    def _replacement(self, owner: Any, attribute: str, func: Callable[..., Any]) -> Any:
        """A replacement of the same kind (method, class method, static method). The tools of a
        class method do not get the class: a condition has the parameters of the caller.
        """
        if not isinstance(owner, type):
            return self._around(func)
        parents = (vars(kind) for kind in owner.__mro__)
        plain = next((each[attribute] for each in parents if attribute in each), None)
        if isinstance(plain, (classmethod, ClassMethodDescriptorType)):

            @functools.wraps(func)
            def call(cls: type, *args: Any, **kwargs: Any) -> Any:
                return run(self.plan, plain.__get__(None, cls), args, kwargs)

            return classmethod(call)
        if isinstance(plain, staticmethod) or plain is None:  # None: a method of the metaclass
            return staticmethod(self._around(func))
        return self._around(func)

    def _around(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(self.plan, func, args, kwargs)

        return call

    def _set_aliases(self, owner: Any, func: Callable[..., Any], replacement: Any) -> None:
        """Replace the function in every module that imported it by its name."""
        bound = isinstance(func, MethodType)  # each access to a bound method makes a new object
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and module is not owner:
                for key, value in list(vars(module).items()):
                    if value is func or (bound and type(value) is MethodType and value == func):
                        self._set(module, key, replacement)

    def _set(self, owner: Any, attribute: str, replacement: Any) -> None:
        try:
            self.attributes.set(owner, attribute, replacement)
        except (AttributeError, TypeError) as error:  # a type of C
            raise AttributeError(f"{self.plan.name!r} cannot be replaced: {error}") from None


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(f for functions in get_overridable_functions().values() for f in functions)


def _function(op: Op) -> tuple[Callable[..., Any], str]:
    """The function of an operator and its full name."""
    if isinstance(op, str):
        try:
            return op_names.resolve(op), op
        except LookupError as error:
            raise AttributeError(str(error)) from None
    if op in _overridable():
        return op, op_names.name_of(op)
    holder = _holder(op)
    if holder is None:
        return op, f"{op.__module__}.{getattr(op, '__qualname__', op)}"
    kind = holder if isinstance(holder, type) else type(holder)
    return op, f"{kind.__module__}.{kind.__qualname__}.{op.__name__}"


def _holder(op: Op) -> Any:
    """The class or the instance that a method is bound to; None: it is not bound."""
    holder = getattr(op, "__self__", None)
    return None if isinstance(holder, ModuleType) else holder


def _owner(op: Op, name: str) -> tuple[Any, str]:
    """The module, class or instance whose attribute a function is, and the attribute."""
    holder = None if isinstance(op, str) else _holder(op)
    if holder is not None:
        return holder, name.rpartition(".")[2]
    with contextlib.suppress(LookupError):
        owner, attribute = op_names.owner_of(name)
        if hasattr(owner, attribute) and hasattr(owner, "__dict__"):
            return owner, attribute
    raise AttributeError(
        f"{name!r} is an attribute of no module, class or instance, so it cannot be replaced. "
        "Hint: pass the full name, such as 'package.module.Class.method'."
    )
