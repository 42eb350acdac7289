"""Whether a compiled graph is worth it, as its first calls show; a graph that loses stays eager."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

ROUNDS = 5  # timed calls of each
WARM = 2  # calls of each before: buffers are allocated, caches are filled
LOSS = 0.95  # eager wins when it takes less than this share of the compiled time

Run = Callable[..., Any]


class Choice:
    """Runs the compiled graph and eager in turn for the first calls, then the better one.

    Each call runs one of the two, so nothing is computed twice and nothing is written twice.
    """

    def __init__(self, compiled: Run, eager: Run, decided: Callable[[str], None]) -> None:
        self._both = (compiled, eager)
        self._decided = decided
        self._times: tuple[dict[Any, list[float]], ...] = ({}, {})
        self._calls = 0
        self._chosen: Run | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is not None:  # hot path
            return self._chosen(*args)
        which = self._calls % 2
        self._calls += 1
        start = _now(args)
        result = self._both[which](*args)
        seconds = _now(args) - start
        if self._calls > 2 * WARM:
            self._times[which].setdefault(_sizes(args), []).append(seconds)
        if self._calls >= 2 * (WARM + ROUNDS):
            self._decide()
        return result

    def _decide(self) -> None:
        compiled, eager = self._times
        common = [sizes for sizes in compiled if sizes in eager]
        if not common:  # every call had other sizes: no comparison, no doubt
            self._chosen = self._both[0]
            return
        ours = sum(statistics.median(compiled[sizes]) for sizes in common)
        theirs = sum(statistics.median(eager[sizes]) for sizes in common)
        loses = theirs < LOSS * ours
        self._chosen = self._both[loses]
        if loses:
            each = len(common)
            self._decided(
                f"eager: {theirs / each * 1e6:.0f} us a call, compiled {ours / each * 1e6:.0f}"
            )


def _now(args: Sequence[Any]) -> float:
    for value in args:
        if isinstance(value, Tensor) and value.device.type == "cuda":
            torch.cuda.synchronize(value.device)
            break
    return time.perf_counter()


def _sizes(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else x for x in args)
