"""Whether a compiled graph is worth it, as its first calls show; a graph that loses stays eager."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ROUNDS = 5  # timed rounds of each
BLOCK = 3  # calls in a row, as a program makes them; the first finds caches full of another's data
CLOSE = 0.9, 1.15  # eager over compiled: so near, and more rounds are needed
MOST = 3 * ROUNDS
GAIN = 1.05  # times as fast as eager, at least, that what is compiled has to be
WARM = 2  # steps of training before those that are timed

Run = Callable[..., Any]


@dataclass(frozen=True)
class Decision:
    """Who won, and what a call took by each, in seconds; nothing where no two were alike."""

    winner: str
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        if not self.seconds:
            return f"{self.winner}; no two calls had the same sizes"
        told = ", ".join(f"{name} {each * 1e6:.0f}" for name, each in self.seconds.items())
        return f"{self.winner}; us a call: {told}"


class Choice:
    """Runs eager and each candidate in turn for the first calls, then the best of them.

    Each call runs one of them, so nothing is computed twice and nothing is written twice. Who does
    not win clearly is no winner: the graph then stays eager, which costs nothing.
    """

    def __init__(
        self, candidates: Mapping[str, Run], eager: Run, decided: Callable[[Decision], None]
    ) -> None:
        self._runs = {**candidates, "eager": eager}
        self._order = list(self._runs)
        self._decided = decided
        self._times: dict[str, dict[Any, list[float]]] = {name: {} for name in self._runs}
        self._calls = 0
        self._rounds = ROUNDS
        self.chosen: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.chosen is not None:  # hot path
            return self.chosen(*args, **kwargs)
        turn, place = divmod(self._calls, BLOCK)
        round_, which = divmod(turn, len(self._order))
        self._calls += 1
        name = self._order[which]
        start = _now(args)
        result = self._runs[name](*args, **kwargs)
        seconds = _now(args) - start
        if place and round_:  # the first round is the warm-up of each
            self._times[name].setdefault(_sizes(args), []).append(seconds)
        if self._calls == BLOCK * len(self._order) * (self._rounds + 1):
            self._decide()
        return result

    def _decide(self) -> None:
        common = set.intersection(*(set(times) for times in self._times.values()))
        names = self._order[:-1]
        if not common:  # every call had other sizes: no comparison, no doubt
            self._settle(Decision(names[0], {}))
            return
        gains = {name: self._gain(name, common) for name in names}
        best = max(names, key=gains.__getitem__)
        if CLOSE[0] < gains[best] < CLOSE[1] and self._rounds < MOST:
            self._rounds += ROUNDS
            return
        spent = {
            name: sum(_typical(times[sizes]) for sizes in common) / len(common)
            for name, times in self._times.items()
        }
        self._settle(Decision(best if gains[best] >= GAIN else "eager", spent))

    def _gain(self, name: str, common: set[Any]) -> float:
        """Eager over a candidate, calls of one round beside each other: what disturbs both for a
        while decides nothing.
        """
        eager, mine = self._times["eager"], self._times[name]
        pairs = [pair for sizes in common for pair in zip(eager[sizes], mine[sizes], strict=False)]
        return statistics.median(theirs / max(ours, 1e-9) for theirs, ours in pairs)

    def _settle(self, decision: Decision) -> None:
        self.chosen = self._runs[decision.winner]
        self._decided(decision)


def _typical(times: Sequence[float]) -> float:
    """What a call takes when nothing disturbs it: others only ever add."""
    return sorted(times)[len(times) // 4]


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
