# SPDX-License-Identifier: Apache-2.0
"""The calls of an iteration: of modules, and of operators outside of modules, with their places."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from op_tools.compare.eligibility import unfit
from op_tools.core import gradients, module_stack, op_names
from op_tools.core.call import Call
from op_tools.core.gradients import Arguments
from op_tools.core.options import Options
from op_tools.core.tool import Observer, Started
from op_tools.one_iter.optimizer_step import Update
from op_tools.one_iter.tree_template import flat

# Wrappers that move a model to devices and processes: the modules inside are compared.
WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")
# Operators that compute nothing, or are no part of the graph.
LEFT_OUT = op_names.VIEWS | op_names.UNINITIALISED | op_names.TRANSFERS | op_names.RANDOM


@dataclass
class Seen:
    """A call that is running."""

    kind: str  # "module" or "operator"
    path: str
    number: int
    name: str
    func: Callable[..., Any]
    args: Any  # (args, kwargs) of the program
    inputs: list[Tensor]
    given: Arguments  # the graph edges of the inputs
    site: str = ""
    module: nn.Module | None = None
    parent: Seen | None = None
    children: list[Seen] = field(default_factory=list)
    state: Any = None  # of the watcher

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that the layer itself uses, not a module that it calls."""
        return {name: value for name, value, _ in _held(self, "named_parameters")}

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {name: value for name, value, _ in _held(self, "named_buffers")}

    @property
    def owners(self) -> tuple[nn.Module, ...]:
        """The module and the modules inside that it does not call."""
        if self.module is None:
            return ()
        called = {id(m) for child in self.children if child.module for m in child.module.modules()}
        return tuple(m for m in self.module.modules() if id(m) not in called)

    def arguments(self, parameters: dict[str, Tensor]) -> Arguments:
        """The graph edges of the inputs, then of the layer's own parameters."""
        count = self.given.count
        leaves = {
            id(value): count + at
            for at, value in enumerate(parameters.values())
            if value.requires_grad
        }
        total = count + len(parameters)
        return Arguments(total, {**leaves, **self.given.leaves}, self.given.edges)


def _held(seen: Seen, method: str) -> list[tuple[str, Tensor, nn.Module]]:
    """The parameters and buffers of the owners, by their names in the layer."""
    if seen.module is None:
        return []
    paths = {id(module): path for path, module in seen.module.named_modules()}
    found = []
    for owner in seen.owners:
        prefix = paths[id(owner)]
        for name, value in getattr(owner, method)(recurse=False):
            found.append((f"{prefix}.{name}" if prefix else name, value, owner))
    return found


class Watcher(Protocol):
    """Callbacks before and after a call, and before and after a step of an optimizer."""

    def begin(self, seen: Seen, call: Call) -> None: ...
    def end(self, seen: Seen, call: Call, result: Any) -> None: ...
    def before_step(self, update: Update) -> None: ...
    def after_step(self, update: Update) -> None: ...


class Sequence(threading.local):
    """The running calls of this thread."""

    def __init__(self) -> None:
        self.stack: list[Seen] = []


class _Calls(Observer):
    key = "CAPTURE"  # it reads no values
    hook = "OneIterationHook"
    wants_modules = True
    only_looks = False

    def __init__(self, watcher: Watcher, on: Callable[[], bool], numbers: Counter[Any]) -> None:
        super().__init__()
        self._options = lambda: Options(level=self._level)  # type: ignore[assignment]
        self._watcher, self._on, self._numbers = watcher, on, numbers
        self._in = Sequence()

    _level: Any = "module"

    def works_on(self, device: torch.device | None) -> bool:
        return True

    def selects(self, call: Call) -> bool:
        return self._on()

    def _number(self, kind: str, path: str) -> int:
        self._numbers[kind, path] += 1
        return self._numbers[kind, path] - 1

    def finish(self, started: Started) -> None:
        """Print nothing: the owner reports."""


class Layers(_Calls):
    """Every call of a module."""

    def wants(self, name: str) -> bool:
        return True

    def before(self, call: Call) -> Seen:
        module = module_stack.module_of(call.func)
        args = call.args[2:], call.kwargs  # after its parameters and buffers
        inputs = flat(args)
        stack = self._in.stack
        seen = Seen(
            "module",
            call.module,
            self._number("module", call.module),
            call.name,
            module_stack.plain_call,
            args,
            inputs,
            _arguments(call, inputs),
            call.site.short if call.site else "",
            module,
            stack[-1] if stack else None,
        )
        if seen.parent is not None:
            seen.parent.children.append(seen)
        stack.append(seen)
        self._watcher.begin(seen, call)
        return seen

    def after(self, call: Call, state: Seen, result: Any) -> None:
        stack = self._in.stack
        while stack and stack.pop() is not state:  # an exception may have left calls
            pass
        self._watcher.end(state, call, result)


class Outside(_Calls):
    """Operators of the graph outside of modules: a loss, mostly."""

    _level = "api"

    def wants(self, name: str) -> bool:
        return op_names.last(name) not in LEFT_OUT and not name.startswith("torch.nn.init.")

    def selects(self, call: Call) -> bool:
        if not self._on() or call.module or call.direction != "forward":
            return False
        if not self._numbers:  # before the first module: the model is under construction
            return False
        if not torch.is_grad_enabled() or unfit(call):
            return False
        return any(tensor.requires_grad for tensor in flat((call.args, call.kwargs)))

    def before(self, call: Call) -> Seen:
        args = call.args, call.kwargs
        inputs = flat(args)
        number = self._number("operator", call.name)
        site = call.site.short if call.site else ""
        given = _arguments(call, inputs)
        seen = Seen("operator", call.name, number, call.name, call.func, args, inputs, given, site)
        self._watcher.begin(seen, call)
        return seen

    def after(self, call: Call, state: Seen, result: Any) -> None:
        self._watcher.end(state, call, result)


def _arguments(call: Call, inputs: list[Tensor]) -> Arguments:
    return gradients.arguments(replace(call, args=(inputs,), kwargs={}))
