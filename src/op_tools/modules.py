"""Which module a call is made in, and calls of modules as if they were operators."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from op_tools.call import Site

Around = Callable[[nn.Module, str, Callable[..., Any]], Any]
Answer = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]

LIMIT = 50_000  # forward calls remembered for their backward
_handles: list[Any] = []
_around: Around | None = None
_plain_call = nn.Module.__call__
_paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
forward: OrderedDict[int, tuple[str, Site | None]] = OrderedDict()


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, str]] = []  # with their paths
        self.answer: Answer | None = None


local = _Local()


def path() -> str:
    """Where in the model this thread is: "blocks.0.attention"; "" outside of any."""
    stack = local.stack
    return stack[-1][1] if stack else ""


def path_of(module: nn.Module) -> str:
    """Where in the model a module is; its class's name when it stands alone."""
    return _named(module)


def watch_silently() -> None:
    """A program that is compiled is not warned of hooks that it did not make, and pass it by."""
    told = r"Using `torch\.compile\(module\)` when there are global hooks"
    warnings.filterwarnings("ignore", told, UserWarning)


def follow(around: Around | None, paths: bool) -> None:
    """Keeps track of modules, and puts `around` about each module's call; None, False: neither."""
    global _around
    _around = around
    if (paths or around) and not _handles:
        watch_silently()
        _handles.append(register_module_forward_pre_hook(_enter))
        _handles.append(register_module_forward_hook(_leave, always_call=True))
    elif not (paths or around):
        while _handles:
            _handles.pop().remove()
        local.stack.clear()
    wanted = _call if around else _plain_call
    if nn.Module.__call__ is not wanted:
        nn.Module.__call__ = wanted  # type: ignore[method-assign]


def _enter(module: nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():  # traced into the program's graph, it would be part of it
        return
    stack = local.stack
    known = _paths.get(module)
    if known is None:
        if stack:  # it may have come in after its root was named
            _name(stack[0][0], "")
        _name(module, stack[-1][1] if stack else "")
        known = _paths.get(module, "")
    stack.append((module, known))


def _leave(module: nn.Module, args: Any, result: Any) -> None:
    if torch.compiler.is_compiling():
        return
    stack = local.stack
    while stack and stack.pop()[0] is not module:  # an exception may have left some behind
        pass


def _name(root: nn.Module, prefix: str) -> None:
    for name, module in root.named_modules():
        known = _paths.get(module)
        full = f"{prefix}.{name}" if prefix and name else prefix or name
        if known is None or (full and not known):
            _paths[module] = full or type(module).__name__


# From a forward call to its backward, by autograd's number of the node.


def remember(sequence: int, module: str, site: Site | None) -> None:
    """The forward call that makes the node of this number."""
    forward[sequence] = (module, site)
    if len(forward) > LIMIT:
        trim()


def trim() -> None:
    """Forgets the oldest of them."""
    while len(forward) > LIMIT:
        forward.popitem(last=False)


def forward_of(node: Any) -> tuple[str, Site | None]:
    """Module and line of the forward call whose gradient is being computed."""
    if node is None:
        return "", None
    number = node._sequence_nr()
    # a function makes several nodes: the nearest call at or before this one
    for sequence in range(number, number - 8, -1):
        if sequence in forward:
            return forward[sequence]
    return "", None


# The module level.


@contextmanager
def standing_in(answer: Answer) -> Iterator[None]:
    """Inside the block, modules that are called do not run: `answer` gives their results.

    Only while a tool works at the module level.
    """
    before, local.answer = local.answer, answer
    try:
        yield
    finally:
        local.answer = before


def plain_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's call that no tool sees, nor anybody stands in for."""
    return _plain_call(module, *args, **kwargs)


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if local.answer is not None:
        return local.answer(self, args, kwargs)
    around = _around
    if around is None:
        return _plain_call(self, *args, **kwargs)
    found = around(self, _named(self), _plain_call)
    if found is NotImplemented:
        return _plain_call(self, *args, **kwargs)
    own = dict(self.named_parameters()), dict(self.named_buffers())
    return found((*own, *args), kwargs)


def _named(module: nn.Module) -> str:
    if module not in _paths:
        _name(module, path())
    return _paths.get(module, "")


def _stand_in(module: nn.Module, values: dict[str, torch.Tensor]) -> nn.Module:
    """The module with other parameters and buffers, for good: a checkpoint inside it runs again
    in the backward pass, when the call is long over.
    """
    own = [*module.named_parameters(), *module.named_buffers()]
    memo: dict[int, Any] = {id(value): values[name] for name, value in own}
    return copy.deepcopy(module, memo)


def function_of(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call as a function of its parameters and buffers too."""

    def call(
        parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], *args: Any, **kw: Any
    ) -> Any:
        same = all(parameters[name] is value for name, value in module.named_parameters())
        if same and all(buffers[name] is value for name, value in module.named_buffers()):
            return plain(module, *args, **kw)
        return _stand_in(module, {**parameters, **buffers})(*args, **kw)

    call.module = module  # type: ignore[attr-defined]
    return call


def module_of(func: Callable[..., Any]) -> nn.Module:
    """The module that a call at the module level is of."""
    module: nn.Module = func.module  # type: ignore[attr-defined]
    return module
