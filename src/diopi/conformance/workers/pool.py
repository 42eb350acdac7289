# SPDX-License-Identifier: Apache-2.0
"""The pool of the suite: distributes groups of cases to workers; a crash costs one case."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.testing import workers
from deeplink.testing.workers import Lost, Worker
from diopi.conformance.cases.case import Finding, Group, Result
from diopi.conformance.execution import calls
from diopi.conformance.workers.worker import DONE, END, LOST, READY, START, VENDOR

MODULE = "diopi.conformance.workers.worker"
START_SECONDS = 180.0
GIVE_UP = 3  # cases of one group that killed their process; the rest is skipped


class LostWorkerError(DeeplinkError):
    """No worker could start: nothing can be checked."""


class _Worker(Worker):
    """A worker that starts, runs a case of its group, or is idle."""

    ready = False
    group: Group | None = None
    case = ""
    vendors_turn = False
    done: list[str]  # finished cases of its group
    note: Path  # file with the C function that it runs

    @property
    def busy(self) -> bool:
        return self.group is not None or not self.ready


class Pool:
    """Runs groups of cases on a vendor with `jobs` processes, each case within `limit` seconds."""

    def __init__(
        self, vendor: str, tier: str, jobs: int, limit: float, options: dict[str, Any] | None = None
    ) -> None:
        self._tier, self._jobs, self._limit = tier, jobs, limit
        settings.leave_out_amx()  # some virtual machines announce AMX without having it
        self._options: dict[str, Any] = {
            "vendor": vendor, "threads": workers.threads(jobs), "path": sys.path, **(options or {}),
        }  # fmt: skip
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()
        self._pending: deque[tuple[Group, list[str]]] = deque()
        self._losses: dict[Group, int] = {}
        self.finished: list[Group] = []
        self.machine = ""  # machine of the vendor's device, as the first worker describes it

    @property
    def groups_done(self) -> int:
        return len(self.finished)

    def __enter__(self) -> Pool:
        self._notes = tempfile.TemporaryDirectory(prefix="diopi-calls-")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._notes.cleanup()

    def run(self, groups: Sequence[Group], done: dict[Group, list[str]]) -> Iterator[Any]:
        """Yield the results of all cases as they arrive; cases in `done` are not run."""
        self._pending.extend((group, done.get(group, [])) for group in groups)
        while self._pending or any(worker.group for worker in self._workers):
            self._hand_out()
            busy = [worker for worker in self._workers if worker.busy]
            for worker, said in workers.listen(busy, self._allowed):
                if isinstance(said, Lost):
                    yield from self._lost(worker, said)
                else:
                    yield from self._handle(worker, *said)

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if not worker.busy]
        for worker in idle[: len(self._pending)]:
            group, done = self._pending.popleft()
            worker.group, worker.done, worker.case = group, list(done), ""
            worker.assign((group, self._tier, done))
        starting = sum(not worker.ready for worker in self._workers)
        while len(self._workers) < self._jobs and starting < len(self._pending):
            note = Path(self._notes.name) / str(next(self._numbers))
            worker = _Worker(MODULE, self._options | {"calls": str(note)})
            worker.note = note
            self._workers.append(worker)
            starting += 1

    def _allowed(self, worker: _Worker) -> float:
        samples = not worker.ready or not worker.case  # creating the samples of the group
        return max(START_SECONDS, self._limit) if samples else self._limit

    def _handle(self, worker: _Worker, kind: str, what: Any) -> Iterator[Any]:
        worker.begin()
        if kind == READY:
            worker.ready = True
            self.machine = str(what)
        elif kind == START:
            worker.case, worker.vendors_turn = str(what), False
        elif kind == VENDOR:
            worker.vendors_turn = True
        elif kind == DONE:
            worker.done.append(what.case)
            worker.case, worker.vendors_turn = "", False
            yield what
        elif kind == LOST and worker.group:
            self._dismiss(worker)
            self._pending.appendleft((worker.group, worker.done))
        elif kind == END and not worker.ready:
            raise LostWorkerError(f"the vendor could not be loaded:\n{what}")
        elif kind == END:
            self.finished += [worker.group] if worker.group else []
            worker.group = None

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.stop()

    def _lost(self, worker: _Worker, how: Lost) -> Iterator[Result]:
        """Yield the result of the case that killed its worker; the rest of its group goes on."""
        if not worker.ready:
            raise LostWorkerError(f"a worker did not start: {how.message}")
        seconds = worker.seconds()
        self._dismiss(worker)
        group = worker.group
        if group is None:
            return
        case = worker.case or f"{group}.0/samples/plain"
        if worker.vendors_turn:
            place = calls.last(worker.note)
            finding = Finding(how.status, f"{place}: {how.message}" if place else how.message)
            took = round(seconds, 3)
            yield Result(case, how.status, "F", (finding,), (how.status,), seconds=took)
        else:  # a crash or hang of the CPU is no failure of the vendor
            yield Result(case, "skipped", reason=f"the CPU itself {how.status}: {how.message}")
        lost = self._losses[group] = self._losses.get(group, 0) + 1
        if worker.case and lost < GIVE_UP:
            self._pending.appendleft((group, [*worker.done, case]))
        else:  # its samples cannot be created here, or too many cases crash
            self.finished.append(group)
            if worker.case:
                reason = f"{lost} cases of this group killed their process"
                yield Result(f"{group}.0/rest/plain", "skipped", reason=reason)
