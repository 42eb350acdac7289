# SPDX-License-Identifier: Apache-2.0
"""The path of the current module, and module calls as calls of operators."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from op_tools.core.call import Site

Around = Callable[[nn.Module, str, Callable[..., Any]], Any]
Answer = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]

LIMIT = 50_000  # forward calls that are kept for their backward pass
_around: Around | None = None
_plain: Callable[..., Any] = nn.Module.__call__  # of torch, or of code that has replaced it
_followed = _plain  # keeps the path, while a tool needs it
_installed: Callable[..., Any] | None = None  # the replacement that is installed
_paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_forward: OrderedDict[int, tuple[str, Site | None]] = OrderedDict()


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, str]] = []  # modules and their paths
        self.answer: Answer | None = None
        self.count = 0  # autograd's count of nodes at the last call


local = _Local()


def path() -> str:
    """The path of the thread's module, as "blocks.0.attention"; "" outside of modules."""
    stack = local.stack
    return stack[-1][1] if stack else ""


def path_of(module: nn.Module) -> str:
    """The path of a module in its model; the name of its class for a root."""
    if module not in _paths:
        _name(module, path())
    return _paths.get(module, "")


def follow(around: Around | None, paths: bool) -> None:
    """Follow the paths of modules, and call `around` for each module call; None, False: neither.

    Replaces `nn.Module.__call__`: global hooks would put torch on its slow path.
    """
    global _around, _plain, _followed, _installed
    changed = (around is None) != (_around is None) or (_installed is None) == bool(paths or around)
    _around = around
    if not changed:
        return
    if nn.Module.__call__ is _installed:
        nn.Module.__call__ = _plain  # type: ignore[method-assign]
    # new functions: other code may hold the previous ones
    _plain, _installed = nn.Module.__call__, None
    _followed = _following(_plain) if paths or around else _plain
    if paths or around:
        _installed = _surrounded(_followed) if around else _followed
        nn.Module.__call__ = _installed  # type: ignore[method-assign]
    else:
        local.stack.clear()


def _following(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`nn.Module.__call__` with the module's path on the stack. Hot path."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # a graph is being traced
            return plain(self, *args, **kwargs)
        stack = local.stack
        path = _paths.get(self)
        if path is None:
            path = _new_path(self, stack)
        depth = len(stack)
        stack.append((self, path))
        try:
            return plain(self, *args, **kwargs)
        finally:
            del stack[depth:]

    return __call__


def _new_path(module: nn.Module, stack: list[tuple[nn.Module, str]]) -> str:
    if stack:  # the module may have been added after its root was named
        _name(stack[0][0], "")
    _name(module, stack[-1][1] if stack else "")
    return _paths.get(module, "")


def _name(root: nn.Module, prefix: str) -> None:
    for name, module in root.named_modules():
        full = ".".join(filter(None, (prefix, name)))
        if not _paths.get(module):
            _paths[module] = full or type(module).__name__


# From a forward call to its backward pass, by autograd's sequence number of the node.


def remember(sequence: int, module: str, site: Site | None, after: bool = False) -> None:
    """Store the module and the line of a forward call for its backward pass.

    `sequence` is autograd's count before the call, or `after` it: if the call has a node, the node
    has the number before the count.
    """
    if after:
        has_node, local.count = sequence != local.count, sequence
        sequence -= has_node
    _forward[sequence] = module, site
    if len(_forward) > LIMIT:
        _forward.popitem(last=False)


def forward_of(node: Any) -> tuple[str, Site | None]:
    """Module and line of the forward call whose gradient is being computed."""
    if node is None:
        return "", None
    number = node._sequence_nr()
    # a function makes several nodes: take the last call at or before the number
    calls = (_forward.get(sequence) for sequence in range(number, number - 8, -1))
    return next(filter(None, calls), ("", None))


# The module level.


@contextmanager
def answered_by(answer: Answer) -> Iterator[None]:
    """Let `answer` return the results of modules that are called inside the block.

    Only while a tool works at the module level.
    """
    before, local.answer = local.answer, answer
    try:
        yield
    finally:
        local.answer = before


def plain_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module unseen by the tools, and not replaced by `answered_by`."""
    return _followed(module, *args, **kwargs)


def _surrounded(followed: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if local.answer is not None:
            return local.answer(self, args, kwargs)
        around = _around
        caller = NotImplemented if around is None else around(self, path_of(self), followed)
        if caller is NotImplemented:
            return followed(self, *args, **kwargs)
        own = dict(self.named_parameters()), dict(self.named_buffers())
        return caller((*own, *args), kwargs)

    return __call__


def _copy_with(module: nn.Module, values: dict[str, torch.Tensor]) -> nn.Module:
    """A copy of a module with other parameters and buffers. They stay in the copy, because a
    checkpoint inside the module reruns it in the backward pass.
    """
    own = [*module.named_parameters(), *module.named_buffers()]
    memo: dict[int, Any] = {id(value): values[name] for name, value in own}
    return copy.deepcopy(module, memo)


def function_of(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a module as a function of its parameters, buffers and arguments."""

    def call(
        parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], *args: Any, **kw: Any
    ) -> Any:
        same = all(parameters[name] is value for name, value in module.named_parameters())
        if same and all(buffers[name] is value for name, value in module.named_buffers()):
            return plain(module, *args, **kw)
        return _copy_with(module, {**parameters, **buffers})(*args, **kw)

    call.module = module  # type: ignore[attr-defined]
    return call


def module_of(func: Callable[..., Any]) -> nn.Module:
    """The module of a function of `function_of`."""
    module: nn.Module = func.module  # type: ignore[attr-defined]
    return module
