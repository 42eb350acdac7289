"""The one place where calls are intercepted: which tools are active, and what a call goes through.

One mode of torch for each level serves all the tools, so tools may be nested and stopped in any
order. The mode of a thread is seen by autograd's threads, which inherit it; threads that are
started while a tool is active get it too.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._ops import OpOverload
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

from op_tools import diagnostics, kernels, modules, names, report, steps, watching
from op_tools.call import Call, Level, call_site, scan
from op_tools.host import own_graph

if TYPE_CHECKING:
    from op_tools.tool import Observer, Substitute, Tool

_tools: list[Tool] = []  # in the order of their starts; the last is the outermost
_decided: dict[str, dict[Any, tuple[Tool, ...]]] = {
    "api": {},  # by the function mode
    "aten": {},  # by the dispatch mode
    "kernel": {},  # by torch's own observers, for tools that only look
    "module": {},
}
_native = False  # kernels are observed natively
_observed: ContextVar[bool] = ContextVar("observed", default=False)  # this one is
_lock = threading.RLock()
_ids = itertools.count(1)
_FAILED = object()


class _Local(threading.local):
    """What a thread is doing."""

    busy = False  # a tool's own work: its calls are nobody's business


local = _Local()


# Interception. Hot path: a call that no tool wants costs a look-up and the mode itself.

_api = _decided["api"]
_aten = _decided["aten"]


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_compiling():  # a graph is being made: its kernels are seen at the aten level
            return func(*args, **(kwargs or {}))
        wanted = _api.get(func)
        if wanted is None:
            wanted = decide("api", func)
        if not wanted:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        return run("api", wanted, func, args, kwargs or {})


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        wanted = _aten.get(func)
        if wanted is None:
            wanted = decide("aten", func)
        if not wanted:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        return run("aten", wanted, func, args, kwargs or {})


_function_mode = _FunctionMode()
_dispatch_mode = _DispatchMode()  # type: ignore[no-untyped-call]


def decide(level: Level, func: Callable[..., Any]) -> tuple[Tool, ...]:
    """The tools that want an operator, outermost first; remembered until a tool comes or goes."""
    if local.busy:  # a tool's own call, not the program's
        return ()
    name = names.name_of(func)
    with _lock:
        wanted: tuple[Tool, ...] = ()
        # a kernel that a dispatch mode calls passes the function mode: the aten level has seen it
        twice = level == "api" and isinstance(func, OpOverload) and _has_level("aten")
        if names.is_operator(name) and not twice:
            at = [tool for tool in reversed(_tools) if tool.level == level and _by_mode(tool)]
            wanted = tuple(tool for tool in at if tool.wants(name))
            for tool in at:
                report.announce(tool, name, tool in wanted)
        _decided[level][func] = wanted
    return wanted


def _by_mode(tool: Tool) -> bool:
    return tool.level != "aten" or not _native or not tool.only_looks


def run(
    level: Level,
    wanted: tuple[Tool, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
    module: str | None = None,
) -> Any:
    """A call through the tools that want its operator; a module's name and path are given."""
    if local.busy:
        return func(*args, **kwargs)
    call, tools = _selected(level, wanted, func, args, kwargs, name, module)
    if call is None or not tools:
        return func(*args, **kwargs)
    return through(tools, call)


def _selected(
    level: Level,
    wanted: tuple[Tool, ...],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
    module: str | None = None,
) -> tuple[Call | None, list[Tool]]:
    """The record of a call and the tools that work on it."""
    previous, local.busy = local.busy, True
    try:
        device, strange = scan(args, kwargs)
        device = device or _device.CURRENT_DEVICE
        tools = [tool for tool in wanted if tool.works_on(device)]
        if not tools or not diagnostics.fit(device, strange):
            return None, []
        call = record(level, name or names.name_of(func), func, args, kwargs, module)
        return call, [tool for tool in tools if tool.selects(call)]
    except Exception as error:  # a tool must not kill the program that it watches
        diagnostics.add("op_tools", name or names.name_of(func), error)
        return None, []
    finally:
        local.busy = previous


# What torch's observers ask and tell about kernels; see kernels.py.


def _decide_kernel(name: str) -> Any:
    func = kernels.function_of(name)
    own = names.name_of(func)
    with _lock:
        at = [tool for tool in reversed(_tools) if tool.level == "aten" and not _by_mode(tool)]
        wanted = tuple(tool for tool in at if tool.wants(own))
        for tool in at:
            report.announce(tool, own, tool in wanted)
        _decided["kernel"][func] = wanted
    return func if wanted else None


def _before_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wanted = _decided["kernel"].get(func, ())
    if local.busy or not wanted:
        return None
    token = _observed.set(True)
    call, tools = _selected("aten", wanted, func, args, kwargs)
    _observed.reset(token)
    if call is None or not tools:
        return None
    observers = cast("list[Observer]", tools)  # only they are observed with
    for tool in observers:
        tool.started.applied += 1
    return call, [(tool, guarded(tool, call, tool.before, call)) for tool in observers]


def _after_kernel(seen: tuple[Call, list[tuple[Any, Any]]], results: list[Any]) -> None:
    call, states = seen
    result = results[0] if len(results) == 1 else tuple(results)
    for tool, state in reversed(states):
        if state is not _FAILED:
            guarded(tool, call, tool.after, call, state, result if results else None)


def record(
    level: Level,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    module: str | None = None,
) -> Call:
    """The record of a call that is about to be made."""
    sequence = torch._C._autograd._get_sequence_nr()
    backward = torch._C._current_graph_task_id() != -1
    path, site = modules.path(), call_site()
    if backward:  # no line of the program is on the stack; in a recomputation, its modules are
        known = modules.forward_of(torch._C._current_autograd_node())
        path, site = path or known[0], site or known[1]
    else:
        # a kernel that the dispatch mode sees has its node already
        modules.remember(sequence - (level == "aten" and not _observed.get()), path, site)
    return Call(
        next(_ids),
        name,
        func,
        args,
        kwargs,
        level,
        "backward" if backward else "forward",
        steps.current(),
        path if module is None else module,
        site,
        sequence,
    )


def through(tools: list[Tool], call: Call) -> Any:
    """The call, with the first tool around the rest of them."""
    from op_tools.tool import Observer, Substitute  # they import us

    if not tools:
        return call.run()
    tool, rest = tools[0], tools[1:]
    tool.started.applied += 1
    if isinstance(tool, Substitute):
        return _substituted(tool, rest, call)
    assert isinstance(tool, Observer)  # there are no other kinds
    state = guarded(tool, call, tool.before, call)
    result = through(rest, call)
    if state is not _FAILED:
        guarded(tool, call, tool.after, call, state, result)
    return result


def _substituted(tool: Substitute, rest: list[Tool], call: Call) -> Any:
    """The call done in another way, else as it was. Where that fails as well, it is no problem
    of the tool's.
    """
    problem = None
    previous, local.busy = local.busy, True
    try:
        with own_graph():
            result = tool.substitute(call)
        if result is not NotImplemented:
            return result
    except Exception as error:  # a tool must not kill the program that it watches
        problem = error
    finally:
        local.busy = previous
    result = through(rest, call)
    if problem is not None:
        diagnostics.add(type(tool).__name__, call.name, problem)
    return result


def guarded(tool: Tool, call: Call, action: Callable[..., Any], *args: Any) -> Any:
    """What a tool does: unseen by the tools, and an error of it is counted, not raised."""
    previous, local.busy = local.busy, True
    enabled = torch.is_grad_enabled()
    try:
        if enabled:
            torch._C._set_grad_enabled(False)
        return action(*args)
    except Exception as error:  # a tool must not kill the program that it watches
        diagnostics.add(type(tool).__name__, call.name, error)
        return _FAILED
    finally:
        if enabled:
            torch._C._set_grad_enabled(True)
        local.busy = previous


def guard(tool: Tool, call: Call) -> Callable[..., Callable[..., None]]:
    """A wrapper for what a tool hangs into the backward pass; it holds no tensor of the call."""
    call = replace(call, args=(), kwargs={})  # an argument's graph may hold the wrapper: a cycle

    def wrap(action: Callable[..., Any]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            guarded(tool, call, action, *args)

        return run

    return wrap


@contextmanager
def unseen() -> Iterator[None]:
    """Calls inside the block are seen by no tool."""
    previous, local.busy = local.busy, True
    try:
        yield
    finally:
        local.busy = previous


@contextmanager
def seen() -> Iterator[None]:
    """Inside a tool's own work, calls that the tools do see."""
    previous, local.busy = local.busy, False
    try:
        yield
    finally:
        local.busy = previous


# Start and stop.


def start(tool: Tool) -> None:
    """Adds a tool, as the outermost."""
    with _lock:
        _tools.append(tool)
        _changed()


def stop(tool: Tool) -> None:
    """Takes a tool away, wherever it is."""
    with _lock:
        if tool in _tools:
            _tools.remove(tool)
            _changed()


def active() -> list[Tool]:
    """The tools that are started, in that order."""
    return list(_tools)


def changed() -> None:
    """Decisions are made anew: a list has changed."""
    with _lock:
        for decided in _decided.values():
            decided.clear()


def _changed() -> None:
    changed()
    # a tool with an empty list looks at nothing, so nothing is intercepted for it
    levels = {tool.level for tool in _tools if tool.started.options.ops}
    _watch_kernels()
    watching.install(bool(_tools), _around_backward, _in_thread)
    steps.count(bool(_tools), _progress)
    modules.follow(_module_call if "module" in levels else None, any(_wants_modules()))
    _set_modes(levels)


def _watch_kernels() -> None:
    global _native
    at = [tool for tool in _tools if tool.level == "aten" and tool.only_looks]
    host = any("cpu" in tool.started.options.devices for tool in at)
    _native = kernels.watch(bool(at), host, _decide_kernel, _before_kernel, _after_kernel)


def _has_level(level: Level) -> bool:
    return any(tool.level == level for tool in _tools)


def _wants_modules() -> Iterator[bool]:
    for tool in _tools:
        yield tool.wants_modules or bool(tool.started.options.select.modules)


def _set_modes(levels: set[Level]) -> None:
    """This thread's modes, as the active tools need them."""
    watching.set_function_mode(_function_mode, "api" in levels)
    by_mode = any(tool.level == "aten" and _by_mode(tool) for tool in _tools)
    watching.set_dispatch_mode(_dispatch_mode, by_mode)


def _in_thread() -> None:
    """In a thread that was started while tools are active."""
    with _lock:
        _set_modes({tool.level for tool in _tools})


@contextmanager
def _around_backward() -> Iterator[None]:
    """A mode is put aside while it handles a call, and `backward()` is one: back with it."""
    if local.busy:  # a tool's own backward
        yield
        return
    levels = {tool.level for tool in _tools}
    added = "api" in levels and watching.push_function_mode(_function_mode)
    try:
        yield
    finally:
        if added:
            watching.set_function_mode(_function_mode, False)
        from op_tools import gradients

        with unseen():
            gradients.finish()


def _progress(step: int) -> None:
    try:
        report.progress(step, active())
    except Exception as error:  # a tool must not kill the program that it watches
        diagnostics.add("op_tools", "progress", error)


def _module_call(module: torch.nn.Module, path: str, plain: Callable[..., Any]) -> Any:
    """What stands around a module's call at the module level; see `modules.follow`."""
    kind = type(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    wanted = _decided["module"].get(kind)
    if wanted is None:
        with _lock:
            at = [tool for tool in reversed(_tools) if tool.level == "module"]
            wanted = tuple(tool for tool in at if tool.wants(name))
            _decided["module"][kind] = wanted
    if not wanted:
        return NotImplemented
    return lambda args, kwargs: run(
        "module", wanted, modules.function_of(module, plain), args, kwargs, name, path
    )


def _stop_all() -> None:
    for tool in reversed(active()):
        tool.stop()


def _forget() -> None:
    """In a forked child (a DataLoader's worker) the parent's tools are not at work."""
    global _tools
    _tools = []
    for decided in _decided.values():
        decided.clear()
    local.busy = True  # whatever mode the parent had passes everything on


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget)
