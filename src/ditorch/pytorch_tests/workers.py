# SPDX-License-Identifier: Apache-2.0
"""The pool for torch's own test suites: each worker loads one source; a crash costs one test."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from deeplink.testing import workers
from deeplink.testing.workers import Lost, Worker
from deeplink.vendor import Vendor
from ditorch.pytorch_tests.device_config import Tolerance
from ditorch.pytorch_tests.results import CPU, DEVICE, Row, Test
from ditorch.pytorch_tests.sources import Source
from ditorch.pytorch_tests.worker import row

MODULE = "ditorch.pytorch_tests.worker"
START_SECONDS = 300.0  # loading a large test file is slow on a busy machine
HELP = 8  # tests in the queue from which on another worker loads the source, too

Select = Callable[[list[Test]], list[Test]]

Bound = tuple[str, str, float]  # pattern of tests, dtype, tolerance


class _Worker(Worker):
    """A worker that loads its source, runs a test, or is idle."""

    loading = True
    test: Test | None = None

    def __init__(
        self, source: Source, vendor: Vendor, jobs: int, tolerances: Sequence[Bound]
    ) -> None:
        self.source = source
        options = {
            "source": asdict(source),
            "vendor": vendor.name,
            "threads": workers.threads(jobs),
            "tolerances": tolerances,
        }
        super().__init__(MODULE, options, source.values(vendor))

    @property
    def busy(self) -> bool:
        return self.loading or self.test is not None


class Pool:
    """At most `jobs` workers; `limit` seconds for each test.
    `total` grows as sources are loaded.
    """

    def __init__(
        self,
        vendor: Vendor,
        jobs: int,
        limit: float,
        start_limit: float = START_SECONDS,
        tolerances: Sequence[Tolerance] = (),
    ) -> None:
        self._tolerances = [(each.test, each.dtype, each.bound) for each in tolerances]
        self.jobs, self.limit, self.start_limit = jobs, limit, start_limit
        self.total = 0
        self._vendor = vendor
        self._workers: list[_Worker] = []
        self._unseen: deque[Source] = deque()  # not loaded by any worker yet
        self._queues: dict[Source, deque[Test]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def run(self, sources: Sequence[Source], select: Select) -> Iterator[Row]:
        """Yield the row of every selected test, in the order in which they finish."""
        self._unseen.extend(sources)
        while True:
            self._hand_out()
            if not self._workers:
                return
            yield from self._collect(select)

    def _hand_out(self) -> None:
        for worker in [worker for worker in self._workers if not worker.busy]:
            if queue := self._queues[worker.source]:
                worker.test = queue.popleft()
                worker.assign(worker.test)
            else:
                self._dismiss(worker)
        while len(self._workers) < self.jobs and (source := self._wanted()):
            self._workers.append(_Worker(source, self._vendor, self.jobs, self._tolerances))

    def _wanted(self) -> Source | None:
        """Choose the source for one more worker: a new one first, then the longest queue."""
        if self._unseen:
            return self._unseen.popleft()
        here = Counter(worker.source for worker in self._workers)
        worth = [s for s, queue in self._queues.items() if len(queue) > HELP * here[s]]
        return max(worth, key=lambda source: len(self._queues[source]), default=None)

    def _collect(self, select: Select) -> Iterator[Row]:
        """Wait until a worker answers, dies or exceeds its time limit."""
        busy = [worker for worker in self._workers if worker.busy]
        for worker, said in workers.listen(busy, self._allowed):
            if isinstance(said, Row):
                worker.test = None
                yield said
            elif isinstance(said, Lost):
                yield from self._lost(worker, said.message)
            elif isinstance(said, tuple):
                yield from self._lost(worker, *said)
            else:
                self._loaded(worker, said, select)

    def _allowed(self, worker: _Worker) -> float:
        return self.start_limit if worker.loading else self.limit

    def _loaded(self, worker: _Worker, tests: list[Test], select: Select) -> None:
        worker.loading = False
        if worker.source not in self._queues:
            self._queues[worker.source] = deque(select(tests))
            self.total += len(self._queues[worker.source])

    def _lost(
        self, worker: _Worker, message: str, where: str = "", result: str = "error"
    ) -> Iterator[Row]:
        """Yield the row of the test that killed its worker; another worker runs the remaining
        tests.

        A source that cannot be loaded gets a row of its own, or rows for its remaining tests.
        """
        self._dismiss(worker)
        seconds = worker.seconds()
        tests = [worker.test] if worker.test else []
        if worker.loading:
            queue = self._queues.setdefault(worker.source, deque())
            side = CPU if worker.source.side == "cpu" else DEVICE
            tests = list(queue) or [Test(worker.source.name, "", "", side)]
            queue.clear()
        for test in tests:
            yield row(test, result, seconds, message, where, self._vendor.device)

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.stop()
