# SPDX-License-Identifier: Apache-2.0
"""The training step, counted from 0: one for each step of the program's first optimizer, also for
one that a GradScaler skips.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from op_tools.core import grad_scaler

_step = 0
_first: weakref.ref[Optimizer] | None = None
_undo: list[Callable[[], None]] = []
_listeners: list[Any] = []
_keepers: list[Callable[[int], None]] = []


def current() -> int:
    """The step that is going on."""
    return _step


def keep(keeper: Callable[[int], None]) -> None:
    """Tells `keeper` the step, and each that comes: the native part has no other way to know."""
    if keeper not in _keepers:
        _keepers.append(keeper)
    keeper(_step)


def _set(number: int) -> None:
    global _step
    _step = number
    for keeper in _keepers:
        keeper(number)


def step() -> None:
    """For a program without an optimizer of torch's: the step is over."""
    _set(_step + 1)
    for listener in list(_listeners):
        listener(_step)


def reset() -> None:
    """Count from 0 again."""
    global _first
    _first = None
    _set(0)


def count(on: bool, listener: Callable[[int], None]) -> None:
    """Count the optimizers' steps and call `listener` after each, or stop to; steps are counted as
    long as there is a listener.
    """
    if on and listener not in _listeners:
        _listeners.append(listener)
    elif not on and listener in _listeners:
        _listeners.remove(listener)
    if _listeners and not _undo:
        _undo.append(register_optimizer_step_post_hook(_after_step).remove)
        _undo.append(grad_scaler.watch(_after_step))
    elif not _listeners:
        while _undo:
            _undo.pop()()


def _after_step(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
    """Of several optimizers (a GAN has two) only the first one counts."""
    global _first
    first = _first() if _first is not None else None
    if first is None:
        _first = weakref.ref(optimizer)
    elif first is not optimizer:
        return
    step()
