"""Whether a compiled graph is worth it, as its first calls show; a graph that loses stays eager."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ROUNDS = 5  # timed calls of each
WARM = 2  # calls of each before: buffers are allocated, caches are filled
GAIN = 1.02  # times as fast as eager, at least, that a compiled step of training has to be
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


class TrainingChoice:
    """Tries forward and backward of both in the first call, in turn, then keeps the better one.

    A forward call alone would not show what its backward costs. Who does not win clearly is no
    winner: the graph then stays eager.
    """

    def __init__(self, compiled: Run, eager: Run, decided: Callable[[str], None]) -> None:
        self._both = (compiled, eager)
        self._decided = decided
        self._chosen: Run | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is None:
            ours, theirs = _training_times(self._both, args)
            loses = theirs < GAIN * ours
            self._chosen = self._both[loses]
            if loses:
                self._decided(f"eager: {theirs * 1e6:.0f} us a step, compiled {ours * 1e6:.0f}")
        return self._chosen(*args)


def _training_times(both: Sequence[Run], args: Sequence[Any]) -> list[float]:
    """Seconds of a forward and backward of each; nothing of the program is changed."""
    times: list[list[float]] = [[] for _ in both]
    devices = {x.device for x in args if isinstance(x, Tensor) and x.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        for _ in range(WARM + ROUNDS):
            for which, run in enumerate(both):
                times[which].append(_step(run, [_leaf(x) for x in args]))
    return [statistics.median(part[WARM:]) for part in times]


def _step(run: Run, args: Sequence[Any]) -> float:
    start = _now(args)
    made = [r for r in tree_leaves(run(*args)) if isinstance(r, Tensor) and r.requires_grad]
    torch.autograd.backward(made, [torch.ones_like(r) for r in made])
    return _now(args) - start


def _leaf(value: Any) -> Any:
    """A copy, for a graph may write its inputs; not of weights: a trained leaf is not written."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, torch.nn.Parameter) and value.requires_grad:
        return value.detach().requires_grad_()
    return value.detach().clone().requires_grad_(value.requires_grad)


def _now(args: Sequence[Any]) -> float:
    for value in args:
        if isinstance(value, Tensor) and value.device.type == "cuda":
            torch.cuda.synchronize(value.device)
            return time.perf_counter()
    # one thread: what other processes take of the machine does not count
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _sizes(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else x for x in args)
