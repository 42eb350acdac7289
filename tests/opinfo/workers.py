"""The pool of op_db: a worker checks one op at a time; one that dies or hangs costs one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deeplink import settings
from deeplink.testing import workers
from deeplink.testing.workers import Lost, Worker
from tests.opinfo.outcome import Failure, Outcome

MODULE = "tests.opinfo.worker"
LIMIT_SECONDS = 120.0
START_SECONDS = 300.0  # importing op_db is slow on a busy machine
READY = "ready"


@dataclass(frozen=True)
class Task:
    """One op in one dtype, to be checked."""

    op: str
    dtype: str
    device: str = "dipu"
    bound: float | None = None  # the device's own tolerances


class LostWorkerError(RuntimeError):
    """A worker process that never came up: nothing can be checked."""


class _Worker(Worker):
    ready = False
    task: Task | None = None


def run_all(tasks: Sequence[Task], jobs: int, limit: int | None = None) -> Iterator[Outcome]:
    """The outcome of every task, in the order in which they finish; `limit` samples of each."""
    settings.leave_out_amx()  # some virtual machines announce it, and die of it
    pending = list(reversed(tasks))
    pool = [_Worker(MODULE, {}) for _ in range(min(jobs, len(tasks)))]
    try:
        while pending or any(worker.task for worker in pool):
            for worker in pool:
                if worker.ready and worker.task is None and pending:
                    worker.task = pending.pop()
                    worker.assign((worker.task, limit))
            yield from _collect(pool)
    finally:
        for worker in pool:
            worker.stop()


def _collect(pool: list[_Worker]) -> Iterator[Outcome]:
    busy = [worker for worker in pool if worker.task or not worker.ready]
    for worker, said in workers.listen(busy, _allowed):
        if isinstance(said, Lost):
            worker.stop()
            yield _lost(worker, said)
            pool[pool.index(worker)] = _Worker(MODULE, {})
        elif said == READY:
            worker.ready = True
        else:
            worker.task = None
            yield said


def _allowed(worker: _Worker) -> float:
    return LIMIT_SECONDS if worker.ready else START_SECONDS


def _lost(worker: _Worker, how: Lost) -> Outcome:
    if worker.task is None:
        raise LostWorkerError(f"a worker did not start: {how.message}")
    failure = Failure("forward", -1, how.message)
    return Outcome(worker.task.op, worker.task.dtype, (0, 1), (0, 0), (failure,))
