# SPDX-License-Identifier: Apache-2.0
"""Parts of torch's optimizers that no tool asks about, kept out of the function mode's way.

Between its kernels an optimizer asks each parameter for its gradient, device and type, and the
mode makes a call of each question: several for each parameter, in every step.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

_MODULES = "adadelta adagrad adam adamw adamax asgd nadam radam rmsprop rprop sgd".split()
_undo: list[tuple[Any, str, Any, Any]] = []
Wrapped = Callable[[TorchFunctionMode, Callable[..., Any]], Callable[..., Any]]


def unasked(mode: TorchFunctionMode, on: bool, host: bool) -> None:
    """Takes these parts out of the mode's sight, or puts them back; `host`: the CPU is watched."""
    while _undo:
        owner, name, plain, ours = _undo.pop()
        if vars(owner)[name] is ours:  # torch.compile, when it is first used, wraps some of them
            setattr(owner, name, plain)
    if not on:
        return
    for owner, name, wrapped in list(_parts(host)):
        plain = vars(owner)[name]
        ours = wrapped(mode, plain)
        _undo.append((owner, name, plain, ours))
        setattr(owner, name, ours)


def _parts(host: bool) -> Iterator[tuple[Any, str, Wrapped]]:
    """Where they are, and what makes ours of one."""
    yield Optimizer, "zero_grad", partial(_without, alone=_to_none)
    yield nn.Module, "zero_grad", partial(_without, alone=_to_none)
    for module in (importlib.import_module(f"torch.optim.{name}") for name in _MODULES):
        for kind in vars(module).values():
            own = isinstance(kind, type) and issubclass(kind, Optimizer)
            if own and kind.__module__ == module.__name__ and "_init_group" in vars(kind):
                yield kind, "_init_group", partial(_without, alone=_has_state)
        if "_default_to_fused_or_foreach" in vars(module):
            yield module, "_default_to_fused_or_foreach", partial(_without, alone=_always)
        if "_get_value" in vars(module) and not host:
            yield module, "_get_value", partial(_without, alone=_on_host)


def _to_none(owner: object, set_to_none: bool = True) -> bool:
    return set_to_none


def _has_state(optimizer: Optimizer, group: dict[str, Any], *lists: object) -> bool:
    """The first time it makes its state, with operators."""
    state, parameters = optimizer.state, group["params"]
    return all(map(state.__contains__, parameters))


def _always(*args: object, **kwargs: object) -> bool:
    return True


def _on_host(value: object) -> bool:
    """The count of steps, which is a number or a tensor of the CPU's."""
    return not isinstance(value, torch.Tensor) or value.is_cpu


def _without(
    mode: TorchFunctionMode, plain: Callable[..., Any], alone: Callable[..., bool]
) -> Callable[..., Any]:
    """The function with the mode put aside; other modes see all that they saw."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _len_torch_function_stack() != 1 or _get_function_stack_at(0) is not mode:
            return plain(*args, **kwargs)
        _pop_torch_function_stack()
        aside = True
        try:
            if not alone(*args, **kwargs):
                _push_on_torch_function_stack(mode)
                aside = False
            return plain(*args, **kwargs)
        finally:
            if aside:
                _push_on_torch_function_stack(mode)

    return call
