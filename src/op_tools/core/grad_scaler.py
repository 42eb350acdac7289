# SPDX-License-Identifier: Apache-2.0
"""GradScaler: the loss before it was scaled, and steps that a scaler skips."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from op_tools.core import tool_errors, torch_patches

Skipped = Callable[[Optimizer], None]

KEY = "op_tools.core.grad_scaler"  # in the metadata of the autograd node that scaled a loss
DISTANCE = 16  # nodes between a scaled loss and the root of a backward pass, at most


class _Local(threading.local):
    """The state of a thread."""

    inside = False  # of `GradScaler.step`; a subclass may call the method of its parent
    stepped = 0  # id of the last optimizer that made a step


_local = _Local()
_listeners: list[Skipped] = []
_patches = torch_patches.Patches()
_hooks: list[Any] = []
_lock = threading.Lock()


def watch(skipped: Skipped) -> Callable[[], None]:
    """Call `skipped` after each `GradScaler.step` that left out the optimizer's step.

    Scaled losses are registered for `unscaled`. The result ends both.
    """
    with _lock:
        _listeners.append(skipped)
        if len(_listeners) == 1:
            _patch()

    def undo() -> None:
        with _lock:
            if skipped not in _listeners:
                return
            _listeners.remove(skipped)
            if not _listeners:
                _patches.undo()
                _hooks.pop().remove()

    return undo


def unscaled(root: Tensor) -> Tensor | None:
    """The loss that was scaled to the root of a backward pass; None: no GradScaler scaled it."""
    queue: deque[Any] = deque([root.grad_fn])
    for _ in range(DISTANCE):
        node = queue.popleft() if queue else None
        if node is None:
            return None
        if KEY in node.metadata:
            loss, scale = node.metadata[KEY]
            unscaled: Tensor = loss if node is root.grad_fn else root / scale(root.device)
            return unscaled.detach()
        queue.extend(above for above, _ in node.next_functions if above is not None)
    return None


def _patch() -> None:
    _hooks.append(register_optimizer_step_post_hook(_after_step))
    for kind in _kinds(torch.amp.GradScaler):
        for name, around in (("scale", _scale), ("step", _step)):
            if name in vars(kind):
                _patches.set(kind, name, around(vars(kind)[name]))


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    children: list[type] = type.__subclasses__(kind)
    for child in children:
        yield from _kinds(child)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _local.stepped = id(optimizer)


def _scale(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def scale(self: Any, outputs: Any) -> Any:
        result = plain(self, outputs)
        if not torch.compiler.is_compiling() and isinstance(result, Tensor):
            try:
                _note(self, plain, outputs, result)
            except Exception as error:  # a tool must not end the program
                tool_errors.add("op_tools", "GradScaler.scale", error)
        return result

    return scale


def _note(scaler: Any, plain: Callable[..., Any], loss: Tensor, result: Tensor) -> None:
    def scale(device: torch.device) -> Tensor:
        factor: Tensor = plain(scaler, torch.ones((), device=device))
        return factor

    node: Any = result.grad_fn
    if result is not loss and node is not None:  # else the scaler is disabled
        node.metadata[KEY] = loss, scale


def _step(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if _local.inside or torch.compiler.is_compiling():
            return plain(self, optimizer, *args, **kwargs)
        _local.inside, _local.stepped = True, 0
        try:
            result = plain(self, optimizer, *args, **kwargs)
        finally:
            _local.inside = False
        if _local.stepped != id(optimizer):
            for skipped in list(_listeners):
                try:
                    skipped(optimizer)
                except Exception as error:  # a tool must not end the program
                    tool_errors.add("op_tools", "GradScaler.step", error)
        return result

    return step
