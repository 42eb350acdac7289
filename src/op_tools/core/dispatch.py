# SPDX-License-Identifier: Apache-2.0
"""What a call goes through that some tool wants: which of them work on it, its record, and they.

Hot path: what can be known of a function, or of a function on a device, is in its plan.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

from op_tools.core import module_stack, op_names, step_counter, terminal, tool_errors, torch_patches
from op_tools.core.call import Call, Level, call_site, device_of, named_device, scan
from op_tools.core.gradients import own_graph

if TYPE_CHECKING:
    from op_tools.core.tool import Observer, Substitute, Tool

ids: Iterator[int] = itertools.count(1)  # counted natively, once that part is there
FAILED = object()
_Device = torch.device | None


class _Local(threading.local):
    """What a thread is doing."""

    busy = False  # a tool's own work: its calls are nobody's business
    # Tools whose `substitute` runs the operator right now: they leave its inner calls alone.
    substituting: tuple[Tool, ...] = ()


local = _Local()


class Plan:
    """The tools that want an operator, outermost first, and of them those that work on a device."""

    __slots__ = ("_on", "announces", "level", "name", "native", "places", "skips", "tools")

    def __init__(
        self, level: Level, name: str, tools: tuple[Tool, ...], native: bool = False
    ) -> None:
        self.level = level
        self.name = name
        self.tools = tools
        self.native = native  # the call is seen before autograd makes its node
        self.places = op_names.last(name) in op_names.PLACING
        self._on: dict[_Device, tuple[Tool, ...]] = {}
        self.announces = terminal.verbose()
        self.skips: tuple[Tool, ...] = ()  # tools whose lists leave the operator out, to announce

    def on(self, device: _Device) -> tuple[Tool, ...]:
        """The tools that work on a device."""
        found = self._on.get(device)
        if found is None:
            found = tuple(tool for tool in self.tools if tool.works_on(device))
            self._on[device] = found
        return found

    def begin(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: str | None,
    ) -> tuple[Call | None, tuple[Tool, ...]]:
        """The record of a call that is about to be made, and the tools that work on it."""
        device, strange = scan(args, kwargs)
        if self.places and (device is None or device.type == "cpu"):
            device = named_device(op_names.last(self.name), args, kwargs) or device
        if device is None:
            device = torch_patches.default_device(func)
        tools = self.on(device)
        if local.substituting:
            tools = tuple([tool for tool in tools if tool not in local.substituting])
        if not tools:
            return None, ()
        if strange is not None or _functorch.peek_interpreter_stack() is not None:
            tool_errors.refuse(tool_errors.reason(strange))
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
        if backward:  # no line of the program is on the stack; in a recomputation, its modules are
            known = module_stack.forward_of(_current_autograd_node())
            path, site = path or known[0], site or known[1]
        elif self.level == "aten" and not self.native:
            module_stack.remember_made(sequence, path, site)
        else:
            module_stack.remember(sequence, path, site)
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
    """A call through the tools that want its operator; a module's path is given."""
    if local.busy:
        return func(*args, **kwargs)
    if plan.skips:
        announce_skips(plan)
    call, tools = selected(plan, func, args, kwargs, module)
    if call is None or not tools:
        return func(*args, **kwargs)
    if plan.announces:
        announce(plan, tools)
    return through(tools, call)


def announce(plan: Plan, tools: Iterable[Tool]) -> None:
    """Prints `apply … on …` for each tool that works on a call."""
    for tool in tools:
        terminal.announce(tool, plan.name, True)


def announce_skips(plan: Plan) -> None:
    """Prints `skip … on …` for each tool that leaves a call out by its lists."""
    for tool in plan.skips:
        terminal.announce(tool, plan.name, False)


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
        return plan.begin(func, args, kwargs, module)
    except Exception as error:  # a tool must not kill the program that it watches
        tool_errors.add("op_tools", plan.name, error)
        return None, ()
    finally:
        local.busy = previous


def through(tools: tuple[Tool, ...], call: Call) -> Any:
    """The call, with the first tool around the rest of them."""
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
    """What an observer keeps from before a call."""
    return guarded(tool, call, cast("Observer", tool).before, call)


def after(tool: Tool, call: Call, state: Any, result: Any) -> None:
    """After a call, unless the observer failed before it."""
    if state is not FAILED:
        guarded(tool, call, cast("Observer", tool).after, call, state, result)


def _substituted(tool: Substitute, rest: tuple[Tool, ...], call: Call) -> Any:
    """Returns what `tool.substitute` returns. Where the tool leaves the call alone or fails, makes
    the call as it was: an error that it raises either way is not reported as the tool's.
    """
    problem = None
    previous, local.busy = local.busy, True
    try:
        with own_graph():
            result = tool.substitute(call.through(partial(_inside, tool, rest, call)))
        if result is not NotImplemented:
            return result
    except Exception as error:  # a tool must not kill the program that it watches
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
    """Runs a call on the arguments of the tool that substitutes it, through the tools inside.

    The tools inside were selected for the program's call. They work on the changed one, too.
    """
    changed = call.given_others(args, kwargs)
    changed.device = device_of(args, kwargs) or call.device
    busy, substituting = local.busy, local.substituting
    local.busy, local.substituting = False, (*substituting, tool)
    try:
        return through(rest, changed)
    finally:
        local.busy, local.substituting = busy, substituting


def guarded(tool: Tool, call: Call, action: Callable[..., Any], *args: Any) -> Any:
    """What a tool does: unseen by the tools, and an error of it is counted, not raised."""
    previous, local.busy = local.busy, True
    enabled = tool.computes and torch.is_grad_enabled()
    try:
        if enabled:
            _set_grad_enabled(False)
        return action(*args)
    except Exception as error:  # a tool must not kill the program that it watches
        tool_errors.add(type(tool).__name__, call.name, error)
        return FAILED
    finally:
        if enabled:
            _set_grad_enabled(True)
        local.busy = previous


def guard(tool: Tool, call: Call) -> Callable[..., Callable[..., None]]:
    """A wrapper for what a tool hangs into the backward pass; it holds no tensor of the call."""
    call = call.given_others((), {})  # an argument's graph may hold the wrapper: a cycle

    return partial(_Guarded, tool, call)


@dataclass(slots=True, eq=False)
class _Guarded:
    """What a tool hung into the backward pass."""

    tool: Tool
    call: Call
    action: Callable[..., Any]

    def __call__(self, *args: Any) -> None:
        # the backward pass runs under the mode that watches calls, and these are our own
        with torch._C.DisableTorchFunction():
            guarded(self.tool, self.call, self.action, *args)


@contextmanager
def unseen() -> Iterator[None]:
    """Calls inside the block are seen by no tool."""
    previous, local.busy = local.busy, True
    try:
        yield
    finally:
        local.busy = previous
