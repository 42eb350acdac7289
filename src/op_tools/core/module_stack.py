# SPDX-License-Identifier: Apache-2.0
"""Which module a call is made in, and calls of modules as if they were operators."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from op_tools.core.call import Site

Around = Callable[[nn.Module, str, Callable[..., Any]], Any]
Answer = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]

LIMIT = 50_000  # forward calls remembered for their backward
_around: Around | None = None
_plain: Callable[..., Any] = nn.Module.__call__  # torch's, or of who has replaced it
_followed = _plain  # with its path kept, while a tool wants that
_ours: Callable[..., Any] | None = None  # what stands in its place
_paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_forward: OrderedDict[int, tuple[str, Site | None]] = OrderedDict()


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, str]] = []  # with their paths
        self.answer: Answer | None = None
        self.count = 0  # of nodes that autograd had made at the last call


local = _Local()


def path() -> str:
    """Where in the model this thread is: "blocks.0.attention"; "" outside of any."""
    stack = local.stack
    return stack[-1][1] if stack else ""


def path_of(module: nn.Module) -> str:
    """Where in the model a module is; its class's name when it stands alone."""
    return _named(module)


def follow(around: Around | None, paths: bool) -> None:
    """Keeps track of modules, and puts `around` about each module's call; None, False: neither.

    By `nn.Module.__call__` itself: with hooks for all modules, torch takes its slow way.
    """
    global _around, _plain, _followed, _ours
    changed = (around is None) != (_around is None) or (_ours is None) == bool(paths or around)
    _around = around
    if not changed:
        return
    if nn.Module.__call__ is _ours:
        nn.Module.__call__ = _plain  # type: ignore[method-assign]
    # new functions: someone may have put his own around those of the last time, for good
    _plain, _ours = nn.Module.__call__, None
    _followed = _following(_plain) if paths or around else _plain
    if paths or around:
        _ours = _surrounded(_followed) if around else _followed
        nn.Module.__call__ = _ours  # type: ignore[method-assign]
    else:
        local.stack.clear()


def _following(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call with its path on the stack. Hot path."""
    # by a reference: `_paths.get` is a function of Python's
    find = _paths.data.get  # type: ignore[attr-defined]

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # a graph is being made: there is nothing to follow in it
            return plain(self, *args, **kwargs)
        stack = local.stack
        known = find(ref(self))
        if known is None:
            known = _new_name(self, stack)
        depth = len(stack)
        stack.append((self, known))
        try:
            return plain(self, *args, **kwargs)
        finally:
            del stack[depth:]

    return __call__


def _new_name(module: nn.Module, stack: list[tuple[nn.Module, str]]) -> str:
    if stack:  # it may have come in after its root was named
        _name(stack[0][0], "")
    _name(module, stack[-1][1] if stack else "")
    return _paths.get(module, "")


def _name(root: nn.Module, prefix: str) -> None:
    for name, module in root.named_modules():
        known = _paths.get(module)
        full = f"{prefix}.{name}" if prefix and name else prefix or name
        if known is None or (full and not known):
            _paths[module] = full or type(module).__name__


# From a forward call to its backward, by autograd's number of the node.


def remember(sequence: int, module: str, site: Site | None) -> None:
    """The forward call that makes the node of this number."""
    _forward[sequence] = module, site
    if len(_forward) > LIMIT:
        _forward.popitem(last=False)


def remember_made(sequence: int, module: str, site: Site | None) -> None:
    """The same where autograd, whose count this is by now, has made the node, if there is one: a
    call without leaves the count as it was, and what comes next is as near.
    """
    made = sequence != local.count
    local.count = sequence
    remember(sequence - made, module, site)


def forward_of(node: Any) -> tuple[str, Site | None]:
    """Module and line of the forward call whose gradient is being computed."""
    if node is None:
        return "", None
    number = node._sequence_nr()
    # a function makes several nodes: the nearest call at or before this one
    near = (_forward.get(sequence) for sequence in range(number, number - 8, -1))
    return next(filter(None, near), ("", None))


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
    return _followed(module, *args, **kwargs)


def _surrounded(followed: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if local.answer is not None:
            return local.answer(self, args, kwargs)
        around = _around
        found = NotImplemented if around is None else around(self, _named(self), followed)
        if found is NotImplemented:
            return followed(self, *args, **kwargs)
        own = dict(self.named_parameters()), dict(self.named_buffers())
        return found((*own, *args), kwargs)

    return __call__


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
