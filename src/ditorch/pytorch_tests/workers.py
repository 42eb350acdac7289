"""A pool of worker processes, each for one source; one that dies or hangs costs one row."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO

from deeplink import settings
from ditorch import session
from ditorch.pytorch_tests.device_config import Tolerance
from ditorch.pytorch_tests.results import Row, Test
from ditorch.pytorch_tests.sources import Source
from ditorch.pytorch_tests.worker import row

START_SECONDS = 300.0  # loading a large test file is slow on a busy machine
HELP = 8  # tests in the queue that make it worth loading their source once more
TAIL = 300  # characters of what a dead process said last

Select = Callable[[list[Test]], list[Test]]

# torch's own product on the CPU, with which the device's is compared
PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def spare_the_cpu(probe: str = PROBE) -> str:
    """Some virtual machines announce AMX, and the CPU dies of it; what was done about it, if so.

    Without this such a crash of the CPU's would be told as the chip's.
    """
    line = [sys.executable, "-c", probe]
    done = subprocess.run(line, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != -signal.SIGILL:
        return ""
    return (
        "this CPU announces instructions that it does not have (torch's own bfloat16 product ends "
        f"with SIGILL); the tests run with {settings.leave_out_amx()}"
    )


@dataclass
class _Worker:
    """A process and what it does: it loads its source, runs a test, or has nothing to do."""

    source: Source
    process: subprocess.Popen[bytes]
    pipe: Connection
    said: IO[bytes]  # its standard output and error
    started: float  # loading, or the test
    loading: bool = True
    test: Test | None = None

    @property
    def busy(self) -> bool:
        return self.loading or self.test is not None


class Pool:
    """At most `jobs` workers; `limit` seconds for each test. `total` grows as sources load."""

    def __init__(
        self,
        jobs: int,
        limit: float,
        start_limit: float = START_SECONDS,
        tolerances: Sequence[Tolerance] = (),
    ) -> None:
        self._tolerances = [(each.test, each.dtype, each.bound) for each in tolerances]
        self.jobs, self.limit, self.start_limit = jobs, limit, start_limit
        self.total = 0
        target = (found := session.current()) and found.target
        self._device = target.device if target else "cuda"
        self._workers: list[_Worker] = []
        self._unseen: deque[Source] = deque()  # not loaded by anyone yet
        self._queues: dict[Source, deque[Test]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _stop(worker)
        self._workers.clear()

    def run(self, sources: Sequence[Source], select: Select) -> Iterator[Row]:
        """The row of every selected test, in the order in which they finish."""
        self._unseen.extend(sources)
        while True:
            self._hand_out()
            if not self._workers:
                return
            yield from self._collect(select)

    def _hand_out(self) -> None:
        for worker in [worker for worker in self._workers if not worker.busy]:
            if queue := self._queues[worker.source]:
                worker.test, worker.started = queue.popleft(), time.monotonic()
                with contextlib.suppress(OSError):  # it died just now: seen when we listen
                    worker.pipe.send(worker.test)
            else:
                self._dismiss(worker)
        while len(self._workers) < self.jobs and (source := self._wanted()):
            self._start(source)

    def _wanted(self) -> Source | None:
        """The source that one more worker should load: a new one first, then the longest queue."""
        if self._unseen:
            return self._unseen.popleft()
        here = Counter(worker.source for worker in self._workers)
        worth = [s for s, queue in self._queues.items() if len(queue) > HELP * here[s]]
        return max(worth, key=lambda source: len(self._queues[source]), default=None)

    def _collect(self, select: Select) -> Iterator[Row]:
        """Waits until a worker says something, dies or is late."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy}
        left = min(self._deadline(worker) for worker in busy.values()) - time.monotonic()
        for pipe in wait(list(busy), timeout=max(0.0, left)):
            worker = busy.pop(pipe)  # type: ignore[call-overload]
            try:
                said = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                yield from self._lost(worker, f"the process died with {_how(worker)}")
                continue
            if isinstance(said, Row):
                worker.test = None
                yield said
            elif isinstance(said, tuple):
                yield from self._lost(worker, *said)
            else:
                self._loaded(worker, said, select)
        for worker in busy.values():
            if time.monotonic() > self._deadline(worker):
                limit = self.start_limit if worker.loading else self.limit
                yield from self._lost(worker, f"no result within {limit:g} s")

    def _deadline(self, worker: _Worker) -> float:
        return worker.started + (self.start_limit if worker.loading else self.limit)

    def _loaded(self, worker: _Worker, tests: list[Test], select: Select) -> None:
        worker.loading = False
        if worker.source not in self._queues:
            self._queues[worker.source] = deque(select(tests))
            self.total += len(self._queues[worker.source])

    def _lost(self, worker: _Worker, message: str, where: str = "") -> Iterator[Row]:
        """The row of the test that took its worker with it; another worker does the rest.

        A source that cannot be loaded costs a row of its own, or those of the tests it still had.
        """
        self._dismiss(worker)
        seconds = time.monotonic() - worker.started
        tests = [worker.test] if worker.test else []
        if worker.loading:
            queue = self._queues.setdefault(worker.source, deque())
            tests = list(queue) or [Test(worker.source.name, "", "")]
            queue.clear()
        for test in tests:
            yield row(test, "error", seconds, message, where, self._device)

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _stop(worker)

    def _start(self, source: Source) -> None:
        """A worker that loads the source; its first message is the list of the tests."""
        ours, theirs = Pipe()
        said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        options = {
            "name": source.name,
            "root": source.root,
            "threads": _threads(self.jobs),
            "tolerances": self._tolerances,
        }
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", str(number), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            pass_fds=(number,),
            start_new_session=True,  # so that what a test starts can be ended with it
        )
        theirs.close()
        self._workers.append(_Worker(source, process, ours, said, time.monotonic()))


def _threads(jobs: int) -> int:
    return max(1, (os.cpu_count() or 1) // jobs)


def _how(worker: _Worker) -> str:
    """The signal or the exit code, and what was said last."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it closed its pipe, and is not gone yet
        worker.process.wait(5.0)
    code = worker.process.poll()
    name = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):  # a signal without a name
            name = signal.Signals(-code).name
    worker.said.seek(0)
    last = _last_words(worker.said.read().decode("utf-8", "replace"))
    return f"{name}: {last}" if last else name


def _last_words(text: str) -> str:
    """Python's own account of a crash, from its first line on; else the end of the output."""
    before, mark, account = text.rpartition("Fatal Python error: ")
    if not mark:
        return " ".join(text.split())[-TAIL:]
    said = " ".join(before.split())[-TAIL:]  # a library may have said why it gives up
    stack = " ".join(account.partition("Extension modules: ")[0].split())[:TAIL]
    return f"{said} {mark}{stack}".strip()


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    worker.said.close()
