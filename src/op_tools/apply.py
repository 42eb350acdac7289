"""`apply_feature`: a tool on chosen functions of torch or of anyone else, under a condition."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self

from torch.overrides import get_overridable_functions

from op_tools import names
from op_tools.autocompare import OpAutoCompare
from op_tools.capture import OpCapture
from op_tools.dtype_cast import OpDtypeCast
from op_tools.fallback import OpFallback
from op_tools.interception import Plan, run
from op_tools.observe import OpObserve
from op_tools.overflow import OpOverflowCheck
from op_tools.time_measure import OpTimeMeasure
from op_tools.tool import Tool

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
    """From now on, `feature` works on these functions wherever `condition_func` of the
    function's own arguments is true; `undo()` of what is returned (or its `with` block) ends it.

    Several features on one function stand around each other, the last one outermost.
    """
    if feature not in FEATURES:
        near = difflib.get_close_matches(feature, FEATURES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(FEATURES)}"
        raise ValueError(f"no feature {feature!r}; {hint}")
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
    """What `apply_feature` did, to be undone."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self._patches: list[tuple[Any, str, Any, Any]] = []

    def add(
        self, kind: type[Tool], op: Op, condition: Callable[..., bool], options: dict[str, Any]
    ) -> None:
        """One function. A function of torch is not touched: it is seen by the mode."""
        func, name = _function(op)
        if func in _overridable():
            self.tools.append(kind(ops=[name], condition=condition, **options).start())
            return
        tool = kind(ops=[name], condition=condition, level="function", **options).start()
        self.tools.append(tool)
        owner, attribute = _owner(name)
        self._replace(owner, attribute, func, _wrapped(func, name, tool))

    def _replace(self, owner: Any, attribute: str, func: Any, wrapper: Any) -> None:
        """In its place, and in every module that took the function by its name."""
        self._set(owner, attribute, wrapper)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and module is not owner:
                taken = [key for key, value in list(vars(module).items()) if value is func]
                for key in taken:
                    self._set(module, key, wrapper)

    def _set(self, owner: Any, attribute: str, wrapper: Any) -> None:
        self._patches.append((owner, attribute, vars(owner)[attribute], wrapper))
        setattr(owner, attribute, wrapper)

    def undo(self) -> None:
        """As it was; what somebody else has put in its place meanwhile is left."""
        while self._patches:
            owner, attribute, before, wrapper = self._patches.pop()
            if vars(owner).get(attribute) is wrapper:
                setattr(owner, attribute, before)
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


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(f for found in get_overridable_functions().values() for f in found)


def _function(op: Op) -> tuple[Callable[..., Any], str]:
    if not isinstance(op, str):
        return op, names.name_of(op) or f"{op.__module__}.{getattr(op, '__qualname__', op)}"
    try:
        return names.resolve(op), op
    except LookupError as error:
        raise AttributeError(str(error)) from None


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that holds a function, by the function's full name."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:-1]:
            owner = getattr(owner, part)
        if parts[-1] in vars(owner):
            return owner, parts[-1]
        for parent in getattr(owner, "__mro__", ())[1:]:
            if parts[-1] in vars(parent):
                return parent, parts[-1]
    raise AttributeError(f"{name!r} is held by no module and no class, so it cannot be replaced")


def _wrapped(func: Callable[..., Any], name: str, tool: Tool) -> Callable[..., Any]:
    """The function with the tool around it; methods bind as before."""

    plan = Plan("function", name, (tool,))

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(plan, func, args, kwargs)

    return call
