# SPDX-License-Identifier: Apache-2.0
"""Measurement of a compiled graph against eager in its first calls; a slower graph stays eager."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from dicp import torch_internals

ROUNDS = 5  # timed rounds of each
BLOCK = 3  # consecutive calls, as in a program; the first finds caches full of other data
BRIEF, LONG_BLOCK = (
    2e-3,
    12,
)  # seconds: a shorter call may run from a cache after six consecutive calls
# ratio of eager to compiled, and of that to the gain: within these, more rounds are needed
CLOSE = 0.9, 1.1
MOST = 3 * ROUNDS
GAIN = 1.05  # minimum speed-up over eager for the compiled graph to be kept
WARM = 2  # steps of training before the timed ones
WARM_CUDA = 6  # on CUDA the first steps record: forward, backward, and rerecordings
STEADY = 1.5  # upper over lower quartile of the ratios: beyond it they decide nothing
SURE = 0.8, 1.3  # ratio of eager to compiled: between them, noise may have decided, and
LATER = 200  # calls later the rounds are repeated
LATER_BRIEF = 2000  # for brief calls: other work may fill the caches for LATER of them

Run = Callable[..., Any]


@dataclass(frozen=True)
class Decision:
    """The winner, and the seconds of a call by each; empty where calls gave no result."""

    winner: str
    seconds: Mapping[str, float]
    final: bool = True  # else later calls are measured once more

    def __str__(self) -> str:
        runs = self.winner if self.final else f"{self.winner} for now"
        if not self.seconds:
            return f"kept {runs}: the times of its calls vary too much to compare"
        times = ", ".join(f"{name} {_time(each)}/call" for name, each in self.seconds.items())
        return f"kept {runs}: {times}"

    def of_steps(self) -> str:
        """Format the result for steps of training, the winner's time first."""
        if not self.seconds:
            return f"kept {self.winner}: the times of its steps vary too much to compare"
        first, *rest = sorted(self.seconds, key=lambda name: name != self.winner)
        times = ", ".join(f"{name} {_time(self.seconds[name])}/step" for name in (first, *rest))
        return f"kept {first}: {times}"


def _time(seconds: float) -> str:
    """Format three digits with a unit: "92.2 ms"."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


class Choice:
    """Runs eager and each candidate alternately in the first calls, then the fastest.

    Each call runs one of them, so nothing is computed or written twice. The first round warms up
    each, as does the first half of each one's consecutive calls. Without a clear winner the graph
    stays eager, which costs nothing. A gain or loss that is not large is measured again some calls
    later, and both measurements count, because noise seldom lasts. Brief calls have to win in both.
    `decided` may return that a larger unit is measured instead; then there is no second
    measurement.
    """

    def __init__(
        self,
        candidates: Mapping[str, Run],
        eager: Run,
        decided: Callable[[Decision], bool | None],
        gain: float = GAIN,
    ) -> None:
        self._gain = gain
        self._runs = {**candidates, "eager": eager}
        self._order = list(self._runs)
        self._decided = decided
        self._times: dict[str, dict[Any, list[float]]] = {name: {} for name in self._runs}
        self._calls = 0
        self._block = BLOCK
        self._last: dict[str, float] = {}  # seconds, in the warm-up round
        self._before = math.inf  # the gain of brief calls in the first measurement
        self._rounds = ROUNDS
        self._most = MOST
        self._resting = 0  # calls until the second measurement
        self._meanwhile: Run = eager
        self.chosen: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.chosen is not None:  # hot path
            return self.chosen(*args, **kwargs)
        if self._resting:
            return self._rest(*args, **kwargs)
        name, timed = self._turn()
        start = _now(args)
        result = self._runs[name](*args, **kwargs)
        self._note(name, timed, _sizes((args, kwargs)), _now(args) - start)
        return result

    def _rest(self, *args: Any, **kwargs: Any) -> Any:
        self._resting -= 1
        return self._meanwhile(*args, **kwargs)

    def _turn(self) -> tuple[str, bool]:
        """Return which one runs the next call, and whether its time counts."""
        turn, place = divmod(self._calls, self._block)
        round_, which = divmod(turn, len(self._order))
        self._calls += 1
        return self._order[which], bool(round_ and place >= self._block // 2)

    def _note(self, name: str, timed: bool, sizes: Any, seconds: float) -> None:
        if timed:
            self._times[name].setdefault(sizes, []).append(seconds)
        elif self._block == BLOCK:
            self._last[name] = seconds
            if self._calls == BLOCK * len(self._order) and 0 < max(self._last.values()) < BRIEF:
                self._block, self._calls = LONG_BLOCK, LONG_BLOCK * len(self._order)
        if self._calls >= self._block * len(self._order) * (self._rounds + 1):
            self._decide()

    def _decide(self) -> None:
        common = set.intersection(*(set(times) for times in self._times.values()))
        names = self._order[:-1]
        ratios = {name: self._ratios(name, common) for name in names}
        gains = {name: statistics.median(found) for name, found in ratios.items()}
        best = max(names, key=gains.__getitem__)
        near = self._is_near(best, gains[best])
        if (near or not common) and self._rounds < self._most:
            self._rounds += ROUNDS
            return
        if not common and not _steady(ratios[best]):
            self._finish(Decision("eager", {}), best)
            return
        large = gains[best] >= SURE[1] and self._block == BLOCK
        sure = self._most > MOST or gains[best] <= SURE[0] or large
        winner = best if min(gains[best], self._before) >= self._gain else "eager"
        if self._block == LONG_BLOCK:
            self._before = gains[best]
        self._finish(Decision(winner, self._spent(common), sure), best)

    def _is_near(self, name: str, gain: float) -> bool:
        """Whether more rounds are needed to find the winner."""
        return CLOSE[0] < gain < CLOSE[1] * self._gain

    def _spent(self, common: set[Any]) -> dict[str, float]:
        """Return the seconds of a call by each."""
        spent = {}
        for name, times in self._times.items():
            alike = [times[sizes] for sizes in common] or [_all(times)]
            spent[name] = sum(_typical(each) for each in alike) / len(alike)
        return spent

    def _ratios(self, name: str, common: set[Any]) -> list[float]:
        """Return ratios of eager to a candidate, paired by round, so that a disturbance affects
        both.

        Where no two calls had equal sizes, they are paired in their order: sizes of a growing cache
        differ by little.
        """
        eager, mine = self._times["eager"], self._times[name]
        pairs = [pair for sizes in common for pair in zip(eager[sizes], mine[sizes], strict=False)]
        pairs = pairs or list(zip(_all(eager), _all(mine), strict=False))
        return [theirs / max(ours, 1e-9) for theirs, ours in pairs]

    def _finish(self, decision: Decision, best: str) -> None:
        winner = self._runs[decision.winner]
        if self._decided(decision) or decision.final:
            self.chosen = winner
            self._runs.clear()  # the losers' weights are freed
            return
        self._order = [best, "eager"]
        self._runs = {name: self._runs[name] for name in self._order}
        brief = self._block == LONG_BLOCK
        self._times = {name: {} if brief else self._times[name] for name in self._order}
        self._meanwhile, self._resting = winner, LATER_BRIEF if brief else LATER
        self._calls = self._block * len(self._order) * (self._rounds + 1)
        self._most = MOST + self._rounds  # beyond the first measurement
        self._rounds *= 2


class StepChoice(Choice):
    """A choice by training steps of the program: a call lasts until the next one starts, so that
    its backward is included. On CUDA, events of the device record each start, and the program
    synchronizes once, after the last.

    Steps of varying duration have to win in three of four rounds, or they stay plain. Steps whose
    saved tensors go through hooks decide nothing, and stay compiled as the trial of the graph
    decided: a recomputation in backward (checkpoints) must run what forward ran.
    """

    def __init__(
        self,
        candidates: Mapping[str, Run],
        eager: Run,
        decided: Callable[[Decision], bool | None],
        lasts: Callable[[Callable[[Sequence[Any]], None]], None],
    ) -> None:
        super().__init__(candidates, eager, decided)
        self._lasts = lasts  # the next call receives what is to be called, with its arguments
        self._spans: list[tuple[str, Any, Any]] = []  # which one ran, from when to when

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.chosen is None and torch_internals.saves_by_hooks():
            self._finish(Decision(self._order[0], {}), self._order[0])
        if self.chosen is not None:
            return self.chosen(*args, **kwargs)
        if self._resting:
            return self._rest(*args, **kwargs)
        name, timed = self._turn()
        given = (*args, *kwargs.values())
        device = _cuda(given)
        start = _mark(device, given)
        result = self._runs[name](*args, **kwargs)
        self._lasts(lambda following: self._end(name, timed, start, _mark(device, following)))
        return result

    def _end(self, name: str, timed: bool, start: Any, end: Any) -> None:
        if timed:
            self._spans.append((name, start, end))
        self._note(name, False, None, 0.0)

    def _decide(self) -> None:
        for name, start, end in self._spans:
            self._times[name].setdefault(None, []).append(_lasted(start, end))
        self._spans.clear()
        super()._decide()

    def _is_near(self, name: str, gain: float) -> bool:
        return super()._is_near(name, gain) or (gain >= self._gain and self._varies(name))

    def _finish(self, decision: Decision, best: str) -> None:
        if decision.seconds and decision.winner != "eager" and self._varies(best):
            decision = Decision("eager", {})
        super()._finish(decision, best)

    def _varies(self, name: str) -> bool:
        """Whether its steps vary too much, compared with eager's, for a winner."""
        ratios = self._ratios(name, {None})
        return not _steady(ratios) and sorted(ratios)[len(ratios) // 4] < self._gain


def _steady(ratios: Sequence[float]) -> bool:
    """Whether ratios are close enough to each other to decide."""
    found = sorted(ratios)
    return found[-1 - len(found) // 4] <= STEADY * found[len(found) // 4]


def _all(times: Mapping[Any, list[float]]) -> list[float]:
    return [seconds for each in times.values() for seconds in each]


def _typical(times: Sequence[float]) -> float:
    """Return the time of an undisturbed call: disturbances only ever add time."""
    return sorted(times)[len(times) // 4]


class TrainingChoice:
    """Tries forward and backward of both in the first call, alternately, then keeps the faster one.

    A forward call alone would not include the cost of its backward. Without a clear winner the
    graph stays eager.
    """

    def __init__(self, compiled: Run, eager: Run, decided: Callable[[Decision], None]) -> None:
        self._both = [compiled, eager]
        self._decided = decided
        self._chosen: Run | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is None:
            self._try(args)
        assert self._chosen is not None
        return self._chosen(*args)

    def stay_eager(self) -> None:
        """Release the compiled graphs: on CUDA their recordings hold the memory of a step."""
        del self._both[:-1]
        self._chosen = self._both[0]

    def _try(self, args: Sequence[Any]) -> None:
        ours, theirs = _training_times(self._both, args)
        self._chosen, winner = self._both[0], "compiled"
        if theirs < GAIN * ours:
            self.stay_eager()
            winner = "eager"
        self._decided(Decision(winner, {"compiled": ours, "eager": theirs}))


def _training_times(both: Sequence[Run], args: Sequence[Any]) -> list[float]:
    """Return the seconds of a forward and backward of each; the program's state is unchanged."""
    times: list[list[float]] = [[] for _ in both]
    devices = {x.device for x in args if isinstance(x, Tensor) and x.device.type == "cuda"}
    warm = WARM_CUDA if devices else WARM
    hooks: Any = contextlib.nullcontext()
    if torch_internals.saves_by_hooks():  # a checkpoint counts saved tensors: this must not add any
        hooks = saved_tensors_hooks(_same, _same)
    with torch.random.fork_rng(devices=list(devices)), hooks:
        # in one place: a recording contains the addresses of buffers
        rooms = [_buffer_of(x) for x in args]
        for _ in range(warm + ROUNDS):
            for which, run in enumerate(both):
                given = [_leaf(x, room) for x, room in zip(args, rooms, strict=True)]
                times[which].append(_step(run, given))
    return [statistics.median(part[warm:]) for part in times]


def _same(saved: Tensor) -> Tensor:
    return saved


def _step(run: Run, args: Sequence[Any]) -> float:
    start = _now(args)
    made = [r for r in tree_leaves(run(*args)) if isinstance(r, Tensor) and r.requires_grad]
    torch.autograd.backward(made, [torch.ones_like(r) for r in made])
    return _now(args) - start


def _buffer_of(value: Any) -> Tensor | None:
    """Copy a tensor, because a graph may write its inputs; not weights, which are not written."""
    trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
    return value.detach().clone() if isinstance(value, Tensor) and not trained else None


def _leaf(value: Any, room: Tensor | None) -> Any:
    """Return an input of a step, as the program passed it."""
    if not isinstance(value, Tensor):
        return value
    found = value if room is None else room.copy_(value.detach())
    return found.detach().requires_grad_(value.requires_grad)


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call on the CPU."""
    start = _now(())
    run()
    return _now(()) - start


def _now(args: Sequence[Any]) -> float:
    for value in args:
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            torch.get_device_module(value.device).synchronize(value.device)
            return time.perf_counter()
    # thread time: time of other processes does not count
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _cuda(args: Sequence[Any]) -> torch.device | None:
    """Return the device of the first tensor on CUDA; None where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return None
    found = (x.device for x in tree_leaves(args) if isinstance(x, Tensor) and x.is_cuda)
    return next(found, torch.device("cuda", torch.cuda.current_device()))


def _mark(device: torch.device | None, args: Sequence[Any]) -> Any:
    """Record a moment: of the program, or of the device when it reaches the following work."""
    if device is None:
        return _now(args)
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _lasted(start: Any, end: Any) -> float:
    """Return the seconds between two moments."""
    if isinstance(end, torch.cuda.Event):
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    return float(end - start)


def _sizes(given: Any) -> tuple[Any, ...]:
    """Return a key of calls with equal work; a program may pass anything, in containers."""
    return tuple(_size(leaf) for leaf in tree_leaves(given))


def _size(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape)
    return leaf if isinstance(leaf, int) else type(leaf)
