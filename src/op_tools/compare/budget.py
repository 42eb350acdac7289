# SPDX-License-Identifier: Apache-2.0
"""Which calls OpAutoCompare judges: within a share of the program's time, or as fast as it can.

A budget limits the tool's time to a share of the program's own. Two steps of a program
are left alone to measure them, then most are judged, and the share of calls that are judged, and
the size of a sample, follow what that costs. A step ends with a step of the optimizer; in a program
without one, time is cut into pieces.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial

from deeplink.i18n import _
from op_tools.core import step_counter
from op_tools.core.call import Call
from op_tools.core.worker import Background

PLAIN, JUDGED = 2, 14  # steps that are left alone, and steps between them; then twice as many, …
FIRST = 1 / 8  # share of the budget that the first judged step takes, as a share of the calls
SLOWEST = 1 / 4  # by what the share of calls falls after a step at most
FEWEST, LARGEST = 2.0**-12, 4.0  # share of the calls; times as many elements in a sample
SMALLEST = 0.25
PIECE = 1.0  # seconds, of a program without steps
BURST = 0.05  # seconds that are allowed at any time
WARM = 1  # steps before the first that is measured
WAITING = 256  # calls that wait to be judged at most
PATIENCE = 0.1  # share of its own time that a program waits for calls to be judged


class Budget:
    """Which calls are judged, so that steps take at most `share` longer than steps left alone."""

    def __init__(self, share: float, is_idle: Callable[[], bool] = lambda: True) -> None:
        self.share = share
        self._is_idle = is_idle  # no verdict is pending, which would take a plain step's time
        self.rate = min(1.0, share * FIRST)  # share of the calls that are judged
        self.scale = 1.0  # of samples
        self.cost = 0.0  # the last measured one, as a share of the step's time
        self._chance = random.Random(0)
        self._seen: Counter[Hashable] = Counter()  # calls by key
        self._calls = 0
        self._lock = threading.Lock()
        self._spent = 0.0  # seconds in the program's threads, since `_begun`
        self._begun = time.perf_counter()
        self._step = step_counter.current()
        self._number = 0  # steps since the start
        self._alone: deque[float] = deque(maxlen=8)  # seconds of steps that were left alone
        self._next_alone, self._between = WARM, JUDGED
        self._is_alone, self._was_idle = False, True

    def wants(self, key: Hashable) -> bool:
        """Whether the next call is to be judged. Calls of all keys (operators) are judged about
        equally often: of one that is called rarely, a larger share.
        """
        self._seen[key] += 1
        self._calls += 1
        now = time.perf_counter()
        step = step_counter.current()
        if step != self._step or (step == 0 and now - self._begun > PIECE):
            with self._lock:
                self._end_of_step(step, now)
        if self._is_alone:
            return False
        elapsed = now - self._begun - self._spent
        if self._spent > BURST + 2 * self.share * max(elapsed, 0.0):
            return False
        if self.rate >= 1:
            return True
        usual = self._calls / len(self._seen)  # calls of a key
        return self._chance.random() * self._seen[key] < self.rate * usual

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the time inside of the block."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._spent += time.perf_counter() - begun

    def _end_of_step(self, step: int, now: float) -> None:
        seconds, self._begun = now - self._begun, now
        spent, self._spent = self._spent, 0.0
        count = max(1, step - self._step)  # some steps may have had no call
        self._number += count
        if not self._is_alone:
            self._adapt(seconds / count, spent / count)
        elif self._was_idle:
            self._alone.append(seconds / count)
        self._step, self._was_idle = step, self._is_idle()
        if step:
            self._is_alone = 0 <= self._number - self._next_alone < PLAIN
            if self._number >= self._next_alone + PLAIN:
                self._next_alone = self._number + self._between
                self._between *= 2

    def _adapt(self, seconds: float, spent: float) -> None:
        own = spent / max(seconds - spent, 1e-6)
        if self._alone:
            own = max(own, seconds / statistics.median(self._alone) - 1)
        self.cost = own if self.cost == 0 else (self.cost + own) / 2
        change = min(2.0, max(SLOWEST, 0.9 * self.share / max(self.cost, 1e-6)))
        wanted = self.rate * change
        if wanted > 1:
            self.scale = min(LARGEST, self.scale * 1.5)
        elif wanted < 1 / 32:
            self.scale = max(SMALLEST, self.scale / 1.5)
        self.rate = min(1.0, max(FEWEST, wanted))

    def __str__(self) -> str:
        return _(
            "a budget of {share:.3g}% of the step: the last steps took {cost:.3g}%, with "
            "{rate:.3g}% of the calls"
        ).format(share=self.share * 100, cost=self.cost * 100, rate=self.rate * 100)


class Pace:
    """Which calls are judged in another thread, where a program makes more calls than it can judge.

    While many are pending, a call is judged if the calls of its operator, module and line were not
    judged more often than those of others: so all of them are judged in turns.
    """

    def __init__(self, patience: float | None, most: float = math.inf) -> None:
        """`most`: seconds of verdicts of one operator that may be pending."""
        self.background = Background(_("verdicts of OpAutoCompare"), WAITING)
        self._most = most
        self._open: Counter[str] = Counter()  # pending verdicts by operator
        self._seconds: dict[str, float] = {}  # of the last verdict
        self._lock = threading.Lock()
        self._patience = PATIENCE if patience is None else patience
        self._begun, self._waited = time.perf_counter(), 0.0
        self._judged: Counter[Hashable] = Counter()
        self._total = 0

    def wants(self, call: Call) -> bool:
        """Whether a call is judged."""
        key = call.name, call.module, call.site
        pending = self.background.pending()
        if self._open[call.name] * self._seconds.get(call.name, 0.0) > self._most:
            return False
        if pending > WAITING // 2 and self._judged[key] * len(self._judged) > self._total:
            return False
        if pending >= WAITING and self._may_wait() <= 0:
            return False
        self._judged[key] += 1
        self._total += 1
        return True

    def offer(self, name: str, work: Callable[[], object], waits: bool) -> bool:
        """Queues a verdict on an operator; False: too many are pending. `waits`: as long as it
        takes.
        """
        work = partial(self._timed, name, work)
        is_queued = self.background.offer(work, 0.0) or self._waited_for(work, waits)
        if is_queued:
            with self._lock:
                self._open[name] += 1
        return is_queued

    def _timed(self, name: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        try:
            work()
        finally:
            self._seconds[name] = time.perf_counter() - begun
            with self._lock:
                self._open[name] -= 1

    def _waited_for(self, work: Callable[[], object], waits: bool) -> bool:
        begun, seconds = time.perf_counter(), None if waits else self._may_wait()
        is_queued = (waits or self._may_wait() > 0) and self.background.offer(work, seconds)
        self._waited += time.perf_counter() - begun
        return is_queued

    def _may_wait(self) -> float:
        """Seconds that the program may wait now."""
        own = time.perf_counter() - self._begun - self._waited
        return self._patience * own - self._waited
