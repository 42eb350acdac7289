"""A small compiled module beside the plain one, as the program calls them: torch.compile's own call
costs some 100 us, which a graph alone does not show. Where the plain module wins, it is called.

Plain is right for any arguments, so what a call is told apart by (its sizes) decides speed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dicp import torch_internals
from dicp.dynamo_bridge.measure import Choice, Decision, Run

SHORT = 5e-3  # seconds of a call; in a longer one torch.compile's own part is lost in the noise


class Shortcut:
    """In the place of a compiled module's call: past torch.compile for sizes where that wins."""

    def __init__(self, compiled: Run, plain: Run) -> None:
        self._compiled, self._plain = compiled, plain
        self._runs: dict[Any, Run] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # hot path
        return self._runs.get(_key(args, kwargs), self._compiled)(*args, **kwargs)

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
    shortcut = compiled if isinstance(compiled, Shortcut) else Shortcut(compiled, found.plain)
    shortcut.measure(_key(found.args, found.kwargs), decided)
    setattr(found.holder, found.name, shortcut)
    return True


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (*args, *kwargs.values()) if kwargs else args
    sizes = [x.shape if isinstance(x, Tensor) else type(x) for x in given]
    return (torch.is_grad_enabled(), *kwargs, *sizes)
