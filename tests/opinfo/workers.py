"""Worker processes that check one op at a time; one that dies or hangs costs one row, no more."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.opinfo.core import Failure, Outcome

LIMIT_SECONDS = 120.0
START_SECONDS = 300.0  # importing op_db is slow on a busy machine


@dataclass(frozen=True)
class Task:
    """One op in one dtype."""

    op: str
    dtype: str
    device: str = "dipu"


class LostWorkerError(RuntimeError):
    """A worker process that never came up: nothing can be checked."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    deadline: float = 0.0


def run_all(tasks: Sequence[Task], jobs: int, limit: int | None = None) -> Iterator[Outcome]:
    """The outcome of every task, in the order in which they finish; `limit` samples of each."""
    pending = list(reversed(tasks))
    workers = [_start() for _ in range(min(jobs, len(tasks)))]
    try:
        while pending or any(worker.task for worker in workers):
            for at, worker in enumerate(workers):
                if worker.task is None and pending:
                    workers[at] = _give(worker, pending.pop(), limit)
            yield from _collect(workers)
    finally:
        for worker in workers:
            _stop(worker)


def _start() -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(START_SECONDS):
        raise LostWorkerError(f"a worker did not start within {START_SECONDS:.0f} s")
    try:
        ours.recv()
    except EOFError:
        raise LostWorkerError("a worker died while it started; its error is above") from None
    return _Worker(process, ours)


def _give(worker: _Worker, task: Task, limit: int | None) -> _Worker:
    worker.task = task
    worker.deadline = time.monotonic() + LIMIT_SECONDS
    worker.pipe.send((task, limit))
    return worker


def _collect(workers: list[_Worker]) -> Iterator[Outcome]:
    busy = {worker.pipe: at for at, worker in enumerate(workers) if worker.task}
    for pipe in wait(list(busy), timeout=1.0):
        at = busy[pipe]  # type: ignore[index]
        worker = workers[at]
        try:
            yield worker.pipe.recv()
            worker.task = None
        except (EOFError, ConnectionResetError):
            worker.process.join()
            yield _lost(worker, f"the process died with exit code {worker.process.exitcode}")
            workers[at] = _start()
    for at, worker in enumerate(workers):
        if worker.task and time.monotonic() > worker.deadline:
            yield _lost(worker, f"no result within {LIMIT_SECONDS:.0f} s")
            _stop(worker)
            workers[at] = _start()


def _lost(worker: _Worker, message: str) -> Outcome:
    task = worker.task
    if task is None:
        raise RuntimeError("a worker without a task was lost")
    failure = Failure("forward", -1, message)
    return Outcome(task.op, task.dtype, (0, 1), (0, 0), (failure,))


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def _serve(pipe: Connection) -> None:
    # some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 bmm
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    import torch

    import torch_dipu  # noqa: F401
    from tests.opinfo.core import check, load_ops, supports

    torch.set_num_threads(1)
    ops = load_ops()
    pipe.send("ready")
    while True:
        task, limit = pipe.recv()
        if task.op in ops and supports(ops[task.op], task.dtype):
            if task.device.startswith("cuda"):
                importlib.import_module("ditorch")  # "cuda" means the device from here on
            pipe.send(check(ops[task.op], task.dtype, task.device, limit))
        else:
            pipe.send(Outcome(task.op, task.dtype, unknown=True))
