# SPDX-License-Identifier: Apache-2.0
"""Whether a compiled graph is worth it, as its first calls show; a graph that loses stays eager."""

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
BLOCK = 3  # calls in a row, as a program makes them; the first finds caches full of another's data
BRIEF, LONG_BLOCK = (
    2e-3,
    12,
)  # seconds: what takes less may lie in a cache, after six calls in a row
CLOSE = 0.9, 1.1  # eager over compiled, and that over the gain: so near, and more rounds are needed
MOST = 3 * ROUNDS
GAIN = 1.05  # times as fast as eager, at least, that what is compiled has to be
WARM = 2  # steps of training before those that are timed
WARM_CUDA = 6  # there the first ones record: forward, backward, and either anew
STEADY = 1.5  # upper over lower quartile of the ratios: beyond it, they show little
SURE = 0.8, 1.3  # eager over compiled: between them, noise may have decided, and
LATER = 200  # calls later as many rounds are added
LATER_BRIEF = 2000  # of brief calls: others may fill the caches for as long as LATER of them

Run = Callable[..., Any]


@dataclass(frozen=True)
class Decision:
    """Who won, and what a call took by each, in seconds; nothing where calls showed nothing."""

    winner: str
    seconds: Mapping[str, float]
    final: bool = True  # or: calls to come show it once more

    def __str__(self) -> str:
        runs = self.winner if self.final else f"{self.winner} for now"
        if not self.seconds:
            return f"kept {runs}: the times of its calls vary too much to compare"
        times = ", ".join(f"{name} {_time(each)}/call" for name, each in self.seconds.items())
        return f"kept {runs}: {times}"

    def of_steps(self) -> str:
        """The same of steps of training, the winner's time first."""
        if not self.seconds:
            return f"kept {self.winner}: the times of its steps vary too much to compare"
        first, *rest = sorted(self.seconds, key=lambda name: name != self.winner)
        times = ", ".join(f"{name} {_time(self.seconds[name])}/step" for name in (first, *rest))
        return f"kept {first}: {times}"


def _time(seconds: float) -> str:
    """Three digits with a unit: "92.2 ms"."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


class Choice:
    """Runs eager and each candidate in turn for the first calls, then the best of them.

    Each call runs one of them, so nothing is computed twice and nothing is written twice. The first
    round warms up each, and so does the first half of each one's calls in a row. Who does not win
    clearly is no winner: the graph then stays eager, which costs nothing. A gain or loss that is
    not large is looked at once more, some calls later, and both looks count: noise seldom lasts.
    Brief calls have to win in either look. `decided` may answer that something larger is measured
    in its place; then there is no second look.
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
        self._last: dict[str, float] = {}  # seconds, in the round that warms up
        self._before = math.inf  # the gain of brief calls in the first look
        self._rounds = ROUNDS
        self._most = MOST
        self._resting = 0  # calls until the second look
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
        """Who runs the next call, and whether its time counts."""
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
            self._settle(Decision("eager", {}), best)
            return
        large = gains[best] >= SURE[1] and self._block == BLOCK
        sure = self._most > MOST or gains[best] <= SURE[0] or large
        winner = best if min(gains[best], self._before) >= self._gain else "eager"
        if self._block == LONG_BLOCK:
            self._before = gains[best]
        self._settle(Decision(winner, self._spent(common), sure), best)

    def _is_near(self, name: str, gain: float) -> bool:
        """Whether more rounds are to show who wins."""
        return CLOSE[0] < gain < CLOSE[1] * self._gain

    def _spent(self, common: set[Any]) -> dict[str, float]:
        """What a call takes by each."""
        spent = {}
        for name, times in self._times.items():
            alike = [times[sizes] for sizes in common] or [_all(times)]
            spent[name] = sum(_typical(each) for each in alike) / len(alike)
        return spent

    def _ratios(self, name: str, common: set[Any]) -> list[float]:
        """Eager over a candidate, calls of one round beside each other: what disturbs both for a
        while decides nothing. Where no two calls had the same sizes, they are taken as they came:
        those of a cache that grows differ by little.
        """
        eager, mine = self._times["eager"], self._times[name]
        pairs = [pair for sizes in common for pair in zip(eager[sizes], mine[sizes], strict=False)]
        pairs = pairs or list(zip(_all(eager), _all(mine), strict=False))
        return [theirs / max(ours, 1e-9) for theirs, ours in pairs]

    def _settle(self, decision: Decision, best: str) -> None:
        winner = self._runs[decision.winner]
        if self._decided(decision) or decision.final:
            self.chosen = winner
            self._runs.clear()  # what lost lets go of its weights
            return
        self._order = [best, "eager"]
        self._runs = {name: self._runs[name] for name in self._order}
        brief = self._block == LONG_BLOCK
        self._times = {name: {} if brief else self._times[name] for name in self._order}
        self._meanwhile, self._resting = winner, LATER_BRIEF if brief else LATER
        self._calls = self._block * len(self._order) * (self._rounds + 1)
        self._most = MOST + self._rounds  # beyond the first look
        self._rounds *= 2


class StepChoice(Choice):
    """A choice by steps of training, as the program makes them: a call lasts until the next one
    starts, so that its backward is in it. On CUDA the device tells when each started, and the
    program waits for it once, when all are over.

    Steps that vary have to win in three of four rounds, or they stay plain. Those whose saved
    tensors go through hooks decide nothing, and stay compiled, as the trial of the graph had it:
    what is computed again in backward (checkpoints) has to be what forward ran.
    """

    def __init__(
        self,
        candidates: Mapping[str, Run],
        eager: Run,
        decided: Callable[[Decision], bool | None],
        lasts: Callable[[Callable[[Sequence[Any]], None]], None],
    ) -> None:
        super().__init__(candidates, eager, decided)
        self._lasts = lasts  # takes what is to be called, with its arguments, by the next call
        self._spans: list[tuple[str, Any, Any]] = []  # who ran, from when to when

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.chosen is None and torch_internals.saves_by_hooks():
            self._settle(Decision(self._order[0], {}), self._order[0])
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

    def _settle(self, decision: Decision, best: str) -> None:
        if decision.seconds and decision.winner != "eager" and self._varies(best):
            decision = Decision("eager", {})
        super()._settle(decision, best)

    def _varies(self, name: str) -> bool:
        """Whether its steps, against eager's, show too little for a winner."""
        ratios = self._ratios(name, {None})
        return not _steady(ratios) and sorted(ratios)[len(ratios) // 4] < self._gain


def _steady(ratios: Sequence[float]) -> bool:
    """Whether ratios are near enough to each other to show anything."""
    found = sorted(ratios)
    return found[-1 - len(found) // 4] <= STEADY * found[len(found) // 4]


def _all(times: Mapping[Any, list[float]]) -> list[float]:
    return [seconds for each in times.values() for seconds in each]


def _typical(times: Sequence[float]) -> float:
    """What a call takes when nothing disturbs it: others only ever add."""
    return sorted(times)[len(times) // 4]


class TrainingChoice:
    """Tries forward and backward of both in the first call, in turn, then keeps the better one.

    A forward call alone would not show what its backward costs. Who does not win clearly is no
    winner: the graph then stays eager.
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
        """Lets go of what was compiled: on CUDA its recordings hold the memory of a step."""
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
    """Seconds of a forward and backward of each; nothing of the program is changed."""
    times: list[list[float]] = [[] for _ in both]
    devices = {x.device for x in args if isinstance(x, Tensor) and x.device.type == "cuda"}
    warm = WARM_CUDA if devices else WARM
    hooks: Any = contextlib.nullcontext()
    if torch_internals.saves_by_hooks():  # a checkpoint counts what is saved: not this
        hooks = saved_tensors_hooks(_same, _same)
    with torch.random.fork_rng(devices=list(devices)), hooks:
        rooms = [_room(x) for x in args]  # in one place: a recording is of where buffers lie
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


def _room(value: Any) -> Tensor | None:
    """A copy, for a graph may write its inputs; not of weights: a trained leaf is not written."""
    trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
    return value.detach().clone() if isinstance(value, Tensor) and not trained else None


def _leaf(value: Any, room: Tensor | None) -> Any:
    """An input of a step, as the program gave it."""
    if not isinstance(value, Tensor):
        return value
    found = value if room is None else room.copy_(value.detach())
    return found.detach().requires_grad_(value.requires_grad)


def seconds(run: Callable[[], object]) -> float:
    """What a call on the CPU takes."""
    start = _now(())
    run()
    return _now(()) - start


def _now(args: Sequence[Any]) -> float:
    for value in args:
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            torch.get_device_module(value.device).synchronize(value.device)
            return time.perf_counter()
    # one thread: what other processes take of the machine does not count
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _cuda(args: Sequence[Any]) -> torch.device | None:
    """The device of the first tensor on CUDA; None where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return None
    found = (x.device for x in tree_leaves(args) if isinstance(x, Tensor) and x.is_cuda)
    return next(found, torch.device("cuda", torch.cuda.current_device()))


def _mark(device: torch.device | None, args: Sequence[Any]) -> Any:
    """A moment: of the program, or when a device comes to what it is given from here on."""
    if device is None:
        return _now(args)
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _lasted(start: Any, end: Any) -> float:
    """The seconds between two moments."""
    if isinstance(end, torch.cuda.Event):
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    return float(end - start)


def _sizes(given: Any) -> tuple[Any, ...]:
    """What calls of the same work have in common; a program may give anything, in containers."""
    return tuple(_size(leaf) for leaf in tree_leaves(given))


def _size(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape)
    return leaf if isinstance(leaf, int) else type(leaf)
