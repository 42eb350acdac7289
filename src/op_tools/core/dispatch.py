# SPDX-License-Identifier: Apache-2.0
"""Calls that a tool wants: the plan of an operator, the record of a call, the tools around it.

Hot path: decisions on a function, or on a function and a device, are kept in its plan.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C import (
    _autograd,
    _current_autograd_node,
    _current_graph_task_id,
    _functorch,
    _set_grad_enabled,
)

from deeplink.i18n import _
from op_tools.core import module_stack, op_names, step_counter, terminal, tool_errors, torch_patches
from op_tools.core.call import Call, Level, call_site, device_of, named_device, scan
from op_tools.core.gradients import own_graph

if TYPE_CHECKING:
    from op_tools.core.tool import Observer, Substitute, Tool

ids: Iterator[int] = itertools.count(1)  # replaced by the native counter when it is loaded
FAILED = object()
_Device = torch.device | None


class _Local(threading.local):
    """The state of a thread."""

    busy = False  # inside of a tool's own work, whose calls no tool sees
    # Tools whose `substitute` is running the operator: they leave its inner calls alone.
    substituting: tuple[Tool, ...] = ()


local = _Local()


@dataclass(slots=True)
class Plan:
    """The tools that want an operator, outermost first, all of them and by device."""

    level: Level
    name: str
    tools: tuple[Tool, ...]
    native: bool = False  # the call is seen before autograd makes its node
    skips: tuple[Tool, ...] = ()  # tools whose lists leave the operator out, to announce
    announces: bool = field(default_factory=terminal.verbose)
    places: bool = field(init=False)  # the operator may name a device
    _on: dict[_Device, tuple[Tool, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = op_names.last(self.name) in op_names.PLACING

    def on(self, device: _Device) -> tuple[Tool, ...]:
        """The tools that work on a device."""
        tools = self._on.get(device)
        if tools is None:
            tools = self._on[device] = tuple(t for t in self.tools if t.works_on(device))
        return tools

    def begin(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: str | None,
    ) -> tuple[Call | None, tuple[Tool, ...]]:
        """The record of a call that is about to run, and the tools that work on it."""
        device, unusual = scan(args, kwargs)
        if self.places and (device is None or device.type == "cpu"):
            device = named_device(op_names.last(self.name), args, kwargs) or device
        if device is None:
            device = torch_patches.default_device(func)
        tools = self.on(device)
        if local.substituting:
            tools = tuple([tool for tool in tools if tool not in local.substituting])
        if not tools:
            return None, ()
        if _functorch.peek_interpreter_stack() is not None:
            tool_errors.skip(_("inside torch.func (vmap, grad, …)"))
            return None, ()
        if unusual is not None:
            tool_errors.skip(_("tensor subclass {name}").format(name=type(unusual).__name__))
            return None, ()
        call = self.record(func, args, kwargs, device, module)
        for tool in tools:
            if tool.selective:
                return call, tuple([tool for tool in tools if tool.selects(call)])
        return call, tools

    def record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: _Device,
        module: str | None,
    ) -> Call:
        """The record of a call."""
        sequence = _autograd._get_sequence_nr()
        path, site = module_stack.path(), call_site()
        backward = _current_graph_task_id() != -1
        if backward:  # the stack has no line of the program, and modules in a recomputation only
            forward = module_stack.forward_of(_current_autograd_node())
            path, site = path or forward[0], site or forward[1]
        else:
            after = self.level == "aten" and not self.native  # the node exists, if there is one
            module_stack.remember(sequence, path, site, after)
        return Call(
            next(ids),
            self.name,
            func,
            args,
            kwargs,
            self.level,
            "backward" if backward else "forward",
            step_counter.current(),
            path if module is None else module,
            site,
            sequence,
            device,
        )


def run(
    plan: Plan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    module: str | None = None,
) -> Any:
    """Make a call through the tools that want its operator. `module`: the path of a module call."""
    if local.busy:
        return func(*args, **kwargs)
    call, tools = selected(plan, func, args, kwargs, module)
    if call is None or not tools:
        return func(*args, **kwargs)
    return through(tools, call)


def selected(
    plan: Plan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    module: str | None = None,
) -> tuple[Call | None, tuple[Tool, ...]]:
    """The record of a call and the tools that work on it."""
    previous, local.busy = local.busy, True
    try:
        for tool in plan.skips:
            terminal.announce(tool, plan.name, False)
        call, tools = plan.begin(func, args, kwargs, module)
        for tool in tools if plan.announces else ():
            terminal.announce(tool, plan.name, True)
        return call, tools
    except Exception as error:  # a tool must not end the program
        tool_errors.add("op_tools", plan.name, error)
        return None, ()
    finally:
        local.busy = previous


def through(tools: tuple[Tool, ...], call: Call) -> Any:
    """Make a call, with the first tool around the others."""
    if not tools:
        return call.run()
    tool, rest = tools[0], tools[1:]
    tool.counted()
    if not tool.observes:
        return _substituted(cast("Substitute", tool), rest, call)
    state = before(tool, call)
    result = through(rest, call)
    after(tool, call, state, result)
    return result


def before(tool: Tool, call: Call) -> Any:
    """Call `before` of an observer; FAILED when it raises."""
    return guarded(tool, call, cast("Observer", tool).before, call)


def after(tool: Tool, call: Call, state: Any, result: Any) -> None:
    """Call `after` of an observer, unless its `before` has failed."""
    if state is not FAILED:
        guarded(tool, call, cast("Observer", tool).after, call, state, result)


def _substituted(tool: Substitute, rest: tuple[Tool, ...], call: Call) -> Any:
    """Return the result of `tool.substitute`. Make the call unchanged if the tool leaves it alone
    or fails: an error of the unchanged call is not reported as the tool's.
    """
    problem = None
    previous, local.busy = local.busy, True
    try:
        with own_graph():
            result = tool.substitute(call.through(partial(_inside, tool, rest, call)))
        if result is not NotImplemented:
            return result
    except Exception as error:  # a tool must not end the program
        problem = error
    finally:
        local.busy = previous
    result = through(rest, call)
    if problem is not None:
        tool_errors.add(type(tool).__name__, call.name, problem)
    return result


def _inside(
    tool: Substitute,
    rest: tuple[Tool, ...],
    call: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call on the arguments of the tool that substitutes it, through the tools inside.

    The tools inside were selected for the program's call, and work on the changed call, too.
    """
    changed = call.with_arguments(args, kwargs)
    changed.device = device_of(args, kwargs) or call.device
    busy, substituting = local.busy, local.substituting
    local.busy, local.substituting = False, (*substituting, tool)
    try:
        return through(rest, changed)
    finally:
        local.busy, local.substituting = busy, substituting


def guarded(tool: Tool, call: Call, action: Callable[..., Any], *args: Any) -> Any:
    """Run the work of a tool: no tool sees its calls, and an error is counted, not raised."""
    previous, local.busy = local.busy, True
    enabled = tool.computes and torch.is_grad_enabled()
    try:
        if enabled:
            _set_grad_enabled(False)
        return action(*args)
    except Exception as error:  # a tool must not end the program
        tool_errors.add(type(tool).__name__, call.name, error)
        return FAILED
    finally:
        if enabled:
            _set_grad_enabled(True)
        local.busy = previous


def guard(tool: Tool, call: Call) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A wrapper for the hooks of a tool in the backward pass; it holds no tensor of the call."""
    call = call.with_arguments((), {})  # the graph of an argument may hold the wrapper: a cycle

    def wrapped(action: Callable[..., Any]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            # the function mode is on in the backward pass, and would see the tool's own calls
            with torch._C.DisableTorchFunction():
                guarded(tool, call, action, *args)

        return hook

    return wrapped


@contextmanager
def _busy(value: bool) -> Iterator[None]:
    previous, local.busy = local.busy, value
    try:
        yield
    finally:
        local.busy = previous


def unseen() -> AbstractContextManager[None]:
    """Let no tool see the calls inside the block."""
    return _busy(True)


def seen() -> AbstractContextManager[None]:
    """Let the tools see the calls inside the block, which is part of a tool's own work."""
    return _busy(False)
