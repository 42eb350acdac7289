# SPDX-License-Identifier: Apache-2.0
"""Measurement of a compiled module against the plain one in the program's calls. torch.compile's
own
part of a call, about 100 us plus as much for each of several graphs, is missing in a trial of a
graph alone. Where the plain module is faster, it is called.

The plain module is correct for any arguments, so the key of a call (its sizes) affects only speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dicp import torch_internals
from dicp.dynamo_bridge.tuning.autotune import Choice, Decision, Run, StepChoice

GAIN = 1.08  # of a whole call: the time of its guards depends on the state of the caches
SHORT = 5e-3  # seconds of one graph: in a longer one torch.compile's own part is negligible


class Shortcut:
    """A callable for a compiled module that bypasses torch.compile for
    sizes where that is faster.
    """

    def __init__(self, compiled: Run, plain: Run) -> None:
        self._compiled, self._plain = compiled, plain
        self._runs: dict[Any, Run] = {}
        self._waiting: dict[Any, list[Callable[[Decision], None]]] = {}
        self._step: Callable[[Sequence[Any]], None] | None = None  # lasts until the next call

    def call(self) -> Run:
        """Return the function that replaces the module's call, which is cheaper than an object."""
        runs, compiled, grad = self._runs, self._compiled, torch.is_grad_enabled

        @functools.wraps(compiled)  # with the marks by which torch.compile recognises its functions
        def call(*args: Any, **kwargs: Any) -> Any:
            # hot path: data of small calls is not in a cache, so the code is in one frame
            if self._step is not None:
                self._end_step((*args, *kwargs.values()))
            if kwargs:
                return runs.get(_key(args, kwargs), compiled)(*args, **kwargs)
            key: list[Any] = [grad()]  # as by _key
            for x in args:
                key.append(x.shape if isinstance(x, Tensor) else type(x))
            return runs.get(tuple(key), compiled)(*args)

        call._shortcut = self  # type: ignore[attr-defined]
        return call

    def measure(self, key: Any, decided: Callable[[Decision], None], training: bool) -> None:
        """Measure whether the next calls of this kind are faster compiled, guards included.

        A request of another graph of the same call restarts the measurement.
        """
        self._waiting.setdefault(key, []).append(decided)

        def settled(decision: Decision) -> None:
            if self._runs[key] is not choice:
                return
            told = self._waiting[key]
            if decision.final:
                self._runs[key] = self._plain if decision.winner == "eager" else self._compiled
                del self._waiting[key]
            for tell in told:
                tell(decision)

        given = {"compiled": self._compiled}, self._plain, settled
        choice = StepChoice(*given, self._begin_step) if training else Choice(*given, gain=GAIN)
        self._runs[key] = choice

    def measures(self) -> bool:
        return bool(self._waiting)

    def _begin_step(self, end: Callable[[Sequence[Any]], None]) -> None:
        self._step = end

    def _end_step(self, given: Sequence[Any]) -> None:
        end, self._step = self._step, None
        if end is not None:
            end(given)


def measure_call(
    decided: Callable[[Decision], None], seconds: float, training: bool = False
) -> bool:
    """Request the measurement of whole calls, in training with their backward, from the next one
    on.

    Called by a graph during a call of duration `seconds`. False where the program called no
    compiled module, or this graph alone and not a short one.
    """
    found = torch_internals.compiled_call()
    if found is None or (found.alone and seconds >= SHORT):
        return False
    if training and (torch_internals.saves_by_hooks() or _is_one_of_many()):
        return False  # a checkpoint's second forward, or another process, must run the same
    if torch.is_grad_enabled() and not training and not found.alone:
        return False  # its training graphs make the request
    compiled = getattr(found.holder, found.name)
    shortcut: Shortcut | None = getattr(compiled, "_shortcut", None)
    if shortcut is None:
        shortcut = Shortcut(compiled, found.plain)
        setattr(found.holder, found.name, shortcut.call())
    holder = found.holder

    def settled(decision: Decision) -> None:
        if decision.winner == "eager" and decision.final:
            torch_internals.straighten(holder)
        decided(decision)

    shortcut.measure(_key(found.args, found.kwargs), settled, training)
    return True


def measures(compiled: Any) -> bool:
    """Whether calls of a compiled module are still being measured."""
    shortcut: Shortcut | None = getattr(compiled.forward, "_shortcut", None)
    return shortcut is not None and shortcut.measures()


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (*args, *kwargs.values()) if kwargs else args
    sizes = [x.shape if isinstance(x, Tensor) else type(x) for x in given]
    return (torch.is_grad_enabled(), *kwargs, *sizes)


def _is_one_of_many() -> bool:
    many = torch.distributed
    return many.is_available() and many.is_initialized() and many.get_world_size() > 1
