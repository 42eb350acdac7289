# SPDX-License-Identifier: Apache-2.0
"""The training step, counted from 0 by the program's first optimizer.

A step that a GradScaler skips counts, too.
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
_listeners: list[Callable[[int], None]] = []  # called after each step
_copies: list[Callable[[int], None]] = []  # set a copy of the step


def current() -> int:
    """The current step."""
    return _step


def copy_to(set_step: Callable[[int], None]) -> None:
    """Call `set_step` with the current step, and with each later one, for the native part."""
    if set_step not in _copies:
        _copies.append(set_step)
    set_step(_step)


def _set(number: int) -> None:
    global _step
    _step = number
    for set_step in _copies:
        set_step(number)


def step() -> None:
    """End a step, in a program without an optimizer of torch."""
    _set(_step + 1)
    for listener in list(_listeners):
        listener(_step)


def reset() -> None:
    """Count from 0 again."""
    global _first
    _first = None
    _set(0)


def count(on: bool, listener: Callable[[int], None]) -> None:
    """Start or stop calling `listener` after each step. Optimizers' steps are counted as long as
    there is a listener.
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
    """Count a step of the first optimizer; a program may have several, as a GAN has."""
    global _first
    first = _first() if _first is not None else None
    if first is None:
        _first = weakref.ref(optimizer)
    elif first is not optimizer:
        return
    step()
