"""A small compiled module beside the plain one, as the program calls them: torch.compile's own call
costs some 100 us, which a graph alone does not show. Where the plain module wins, it is called.

Plain is right for any arguments, so what a call is told apart by (its sizes) decides speed alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dicp import torch_internals
from dicp.dynamo_bridge.measure import Choice, Decision, Run

SHORT = 5e-3  # seconds of a call; in a longer one torch.compile's own part is lost in the noise


class Shortcut:
    """For a compiled module's call: past torch.compile for sizes where that wins."""

    def __init__(self, compiled: Run, plain: Run) -> None:
        self._compiled, self._plain = compiled, plain
        self._runs: dict[Any, Run] = {}

    def call(self) -> Run:
        """What is called in its place: a function, which costs less than an object."""
        runs, compiled = self._runs, self._compiled

        @functools.wraps(compiled)  # with the marks by which torch.compile knows its own
        def call(*args: Any, **kwargs: Any) -> Any:
            # hot path
            if kwargs:
                return runs.get(_key(args, kwargs), compiled)(*args, **kwargs)
            return runs.get(_key(args, kwargs), compiled)(*args)

        call._shortcut = self  # type: ignore[attr-defined]
        return call

    def measure(self, key: Any, decided: Callable[[Decision], None]) -> None:
        """The next calls of this kind show whether it is faster compiled, guards included."""

        def settled(decision: Decision) -> None:
            self._runs[key] = self._plain if decision.winner == "eager" else self._compiled
            decided(decision)

        self._runs[key] = Choice({"compiled": self._compiled}, self._plain, settled)


def measure_call(decided: Callable[[Decision], None]) -> bool:
    """Asked by a graph in a call of it: has that call measured as a whole from the next one on.

    False where what the program called is no compiled module, or more than this one graph.
    """
    found = torch_internals.compiled_call()
    if found is None:
        return False
    compiled = getattr(found.holder, found.name)
    shortcut: Shortcut | None = getattr(compiled, "_shortcut", None)
    if shortcut is None:
        shortcut = Shortcut(compiled, found.plain)
        setattr(found.holder, found.name, shortcut.call())
    shortcut.measure(_key(found.args, found.kwargs), decided)
    return True


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (*args, *kwargs.values()) if kwargs else args
    sizes = [x.shape if isinstance(x, Tensor) else type(x) for x in given]
    return (torch.is_grad_enabled(), *kwargs, *sizes)
