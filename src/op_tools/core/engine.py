# SPDX-License-Identifier: Apache-2.0
"""The active tools, and the modes of torch that intercept calls for them.

One mode for each level serves all tools, so tools may be nested and stopped in any order.
Autograd's threads inherit the modes; threads that start while a tool is active get them, too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deeplink import settings
from op_tools.core import (
    gradients,
    lifecycle,
    module_stack,
    native_library,
    op_names,
    step_counter,
    terminal,
    tool_errors,
    torch_patches,
)
from op_tools.core.call import Call, Level
from op_tools.core.dispatch import Plan, after, before, local, run, selected, unseen

if TYPE_CHECKING:
    from op_tools.core.tool import Tool

_tools: list[Tool] = []  # in the order of their starts; the last is the outermost
_Caller = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]  # makes a call
# Decisions of the tools; None: no tool wants the operator.
_api: dict[Any, _Caller | None] = {}  # by function
_aten: dict[Any, _Caller | None] = {}  # by operator, in the dispatch mode
_kernels: dict[Any, Plan | None] = {}  # by operator, for torch's observers
_modules: dict[type, Plan | None] = {}  # by class
_UNDECIDED: Any = object()
_native = False  # kernels are observed natively
_forked = False  # this process is a child that has started no tool of its own
_lock = threading.RLock()


# Interception: a call that no tool wants costs a look-up and the mode itself.


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_compiling():  # a graph is being traced: its kernels are seen at the aten level
            return func(*args, **(kwargs or {}))
        return _intercepted("api", _api, func, args, kwargs)


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _intercepted("aten", _aten, func, args, kwargs)


def _intercepted(
    level: Level,
    decided: dict[Any, _Caller | None],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    caller = decided.get(func, _UNDECIDED)
    if caller is _UNDECIDED:
        caller = decide(level, func)
    if caller is None:
        return func(*args) if kwargs is None else func(*args, **kwargs)
    return caller(func, args, kwargs or {})


_function_mode = _FunctionMode()
_dispatch_mode = _DispatchMode()  # type: ignore[no-untyped-call]


def _holders() -> int:
    return sys.getrefcount(_function_mode) + sys.getrefcount(_dispatch_mode)


_ALONE = _holders()  # references of this module alone
_mode_of, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE


def decide(level: Level, func: Callable[..., Any]) -> _Caller | None:
    """The function that makes the calls of an operator, until a tool starts or stops."""
    if local.busy:  # a tool's own call, not the program's
        return None
    name = op_names.name_of(func)
    with _lock:
        plan = None
        # the aten level has seen a kernel that a dispatch mode calls through the function mode
        twice = level == "api" and isinstance(func, OpOverload) and _has_level("aten")
        if op_names.is_operator(name) and not twice:
            plan = _plan(level, name)
        elif name and not twice and terminal.verbose():
            plan = _plan(level, name, leaves_out=True)
        caller: _Caller | None = None if plan is None else partial(run, plan)
        if plan is not None and level == "api" and len(plan.tools) == 1:
            caller = plan.tools[0].direct(plan) or caller
        (_api if level == "api" else _aten)[func] = caller
    return caller


def _plan(level: Level, name: str, observed: bool = False, leaves_out: bool = False) -> Plan | None:
    """The plan of an operator. `observed`: of a kernel, by torch's observers. `leaves_out`: no tool
    works on it, whatever its lists.
    """
    at = [t for t in reversed(_tools) if t.level == level and _is_observed(t) == observed]
    tools = () if leaves_out else tuple([tool for tool in at if tool.wants(name)])
    skips: tuple[Tool, ...] = ()
    if terminal.verbose():
        named = [tool for tool in at if not leaves_out or _has_lists(tool)]
        skips = tuple([t for t in named if t.announces_skips and t not in tools])
    return Plan(level, name, tools, observed, skips) if tools or skips else None


def _has_lists(tool: Tool) -> bool:
    """Whether the user has set a list of operators."""
    options = tool.started.options
    ops, disable = (setting.default() for setting in settings.op_lists(tool.key))
    return (options.ops, options.disable) != (ops, disable)


def _is_observed(tool: Tool) -> bool:
    """Whether torch's observers report kernels to a tool, instead of the dispatch mode."""
    return tool.level == "aten" and _native and tool.only_looks


# Callbacks of the native observer of kernels, see native_library.py.


def _decide_kernel(name: str) -> Any:
    func = native_library.function_of(name)
    with _lock:
        plan = _plan("aten", op_names.name_of(func), observed=True)
        _kernels[func] = plan
    if plan is None:
        return None
    native = plan.tools[0].native_for(plan) if len(plan.tools) == 1 else None
    return func if native is None else (func, native.sink, native.headers, plan.name)


def _before_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    plan = _kernels.get(func)
    # a thread that traces a program has fake tensors, without values
    if local.busy or plan is None or _mode_of(_FAKE) is not None:
        return None
    call, tools = selected(plan, func, args, kwargs)
    if call is None or not tools:
        return None
    for tool in tools:
        tool.counted()
    return call, [(tool, before(tool, call)) for tool in tools]


def _after_kernel(begun: tuple[Call, list[tuple[Tool, Any]]], results: list[Any]) -> None:
    call, states = begun
    result = results[0] if len(results) == 1 else tuple(results)
    for tool, state in reversed(states):
        after(tool, call, state, result if results else None)


# Start and stop.


def start(tool: Tool) -> None:
    """Add a tool, as the outermost."""
    global _forked
    with _lock:
        if _forked:  # the first tool of the child
            _forked = local.busy = False
        _tools.append(tool)
        _changed()


def stop(tool: Tool) -> None:
    """Remove a tool, wherever it is."""
    with _lock:
        if tool in _tools:
            _tools.remove(tool)
            _changed()


def active() -> list[Tool]:
    """The started tools, in the order of their starts."""
    return list(_tools)


def _undecide() -> None:
    for decided in (_api, _aten, _kernels, _modules):
        decided.clear()


def _changed() -> None:
    global _native
    _undecide()
    # nothing is intercepted for a tool whose list is empty
    levels = {tool.level for tool in _tools if tool.started.options.ops}
    observers = [tool for tool in _tools if tool.level == "aten" and tool.only_looks]
    host = any("cpu" in tool.started.options.devices for tool in observers)
    _native = native_library.watch(
        bool(observers), host, _decide_kernel, _before_kernel, _after_kernel
    )
    torch_patches.install(bool(_tools), _before_backward, _after_backward, _in_thread)
    step_counter.count(bool(_tools), _progress)
    around = _module_call if "module" in levels else None
    paths = any(tool.wants_modules or tool.started.options.select.modules for tool in _tools)
    module_stack.follow(around, paths)
    _set_modes(levels)


def _has_level(level: Level) -> bool:
    return any(tool.level == level for tool in _tools)


def _set_modes(levels: set[Level]) -> None:
    """Set the modes of the current thread that the active tools need."""
    torch_patches.set_function_mode(_function_mode, "api" in levels)
    by_mode = any(tool.level == "aten" and not _is_observed(tool) for tool in _tools)
    torch_patches.set_dispatch_mode(_dispatch_mode, by_mode)


def _in_thread() -> None:
    """Set the modes of a thread that starts while tools are active."""
    with _lock:
        _set_modes({tool.level for tool in _tools})


def _before_backward() -> bool | None:
    """Push the function mode, which torch has removed while it handles `backward()` as a call.

    Whether the mode was pushed; None in a tool's own backward pass.
    """
    if local.busy:
        return None
    return _has_level("api") and torch_patches.push_function_mode(_function_mode)


def _after_backward(added: bool | None) -> None:
    if added is None:
        return
    if added:
        torch_patches.set_function_mode(_function_mode, False)
    with unseen():
        try:
            gradients.finish()
            native = native_library.loaded()
            if native is not None:
                native.finish_gradients()
        except Exception as error:  # a tool must not end the program
            tool_errors.add("op_tools", "backward", error)


def _progress(step: int) -> None:
    try:
        terminal.progress(step, active())
    except Exception as error:  # a tool must not end the program
        tool_errors.add("op_tools", "progress", error)


def _module_call(module: torch.nn.Module, path: str, plain: Callable[..., Any]) -> Any:
    """The function that makes a module's call through the tools, see `module_stack.follow`."""
    kind = type(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    with _lock:
        if kind not in _modules:
            at = [tool for tool in reversed(_tools) if tool.level == "module"]
            tools = tuple(tool for tool in at if tool.wants(name))
            _modules[kind] = Plan("module", name, tools) if tools else None
        plan = _modules[kind]
    if plan is None:
        return NotImplemented
    return lambda args, kwargs: run(
        plan, module_stack.function_of(module, plain), args, kwargs, module=path
    )


def _wait_for_threads(seconds: float) -> None:
    """Wait until autograd's threads have released the modes that they inherited.

    A thread needs the interpreter for that, and would abort the process after the interpreter's
    end.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if _holders() <= _ALONE:
            return
        time.sleep(0.001)


class _Modes:
    """The modes at the end of the process. Registered first, so it is closed last."""

    def close(self) -> None:
        # a daemon thread, or the traceback of the program's error, may hold the modes for good
        held = any(thread.daemon for thread in threading.enumerate())
        if not _forked:  # a child has no threads of autograd
            _wait_for_threads(1.0 if held or hasattr(sys, "last_value") else 10.0)

    def after_fork(self) -> None:
        """Stop the parent's tools in a child, for example a worker of a DataLoader."""
        global _tools, _lock, _forked
        _lock = threading.RLock()  # another thread of the parent may hold the lock
        if _tools:
            _forked = local.busy = True  # the inherited modes pass every call on
        _tools = []
        _undecide()
        lifecycle.register(self, last=True)


lifecycle.register(_Modes(), last=True)
