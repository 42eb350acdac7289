"""Worker processes; a case that kills or hangs its process costs one result, no more."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from deeplink import settings
from deeplink.errors import DeeplinkError
from diopi.conformance.case import Finding, Group, Result
from diopi.conformance.worker import DONE, END, LOST, READY, START, VENDOR

START_SECONDS = 180.0
GIVE_UP = 3  # cases of one group that took their process with them; the rest is left out
TAIL = 300  # characters of what a dead process said last


class LostWorkerError(DeeplinkError):
    """A worker that never came up: nothing can be checked."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    said: IO[bytes]
    since: float
    ready: bool = False
    group: Group | None = None
    case: str = ""
    vendors_turn: bool = False
    done: list[str] = field(default_factory=list)  # cases of its group


class Pool:
    """Runs groups of cases on a vendor with `jobs` processes, each case within `limit` seconds."""

    def __init__(
        self, vendor: str, tier: str, jobs: int, limit: float, options: dict[str, str] | None = None
    ) -> None:
        self._tier, self._jobs, self._limit = tier, jobs, limit
        settings.leave_out_amx()  # some virtual machines announce it, and die of it
        threads = max(1, (os.cpu_count() or 1) // jobs)
        path = "\n".join(sys.path)
        self._folder = tempfile.TemporaryDirectory(prefix="conformance_")
        self._options = Path(self._folder.name) / "options.json"
        self._options.write_text(
            json.dumps({"vendor": vendor, "threads": str(threads), "path": path} | (options or {})),
            "utf-8",
        )
        self._workers: list[_Worker] = []
        self._pending: deque[tuple[Group, list[str]]] = deque()
        self._losses: dict[Group, int] = {}
        self.groups_done = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _stop(worker)
        self._workers.clear()
        self._folder.cleanup()

    def run(self, groups: Sequence[Group], done: dict[Group, list[str]]) -> Iterator[Any]:
        """The results of all cases, as they come; those in `done` are not run."""
        self._pending.extend((group, done.get(group, [])) for group in groups)
        while self._pending or any(worker.group for worker in self._workers):
            self._hand_out()
            yield from self._collect()

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if worker.ready and worker.group is None]
        for worker in idle[: len(self._pending)]:
            group, done = self._pending.popleft()
            worker.group, worker.done, worker.case = group, list(done), ""
            worker.since = time.monotonic()
            with contextlib.suppress(OSError):  # it died just now: seen when we listen
                worker.pipe.send((group, self._tier, done))
        busy = sum(worker.group is not None or not worker.ready for worker in self._workers)
        while len(self._workers) < self._jobs and busy < len(self._pending) + busy:
            self._workers.append(self._start())
            busy += 1

    def _collect(self) -> Iterator[Any]:
        listening = {w.pipe: w for w in self._workers if w.group or not w.ready}
        left = min((self._deadline(w) for w in listening.values()), default=0.0) - time.monotonic()
        for pipe in wait(list(listening), timeout=max(0.0, min(left, 5.0))):
            worker = listening[pipe]  # type: ignore[index]
            try:
                kind, what = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                yield from self._lost(worker, "crashed", f"the process died with {_how(worker)}")
                continue
            yield from self._heard(worker, kind, what)
        for worker in list(self._workers):
            if (worker.group or not worker.ready) and time.monotonic() > self._deadline(worker):
                yield from self._lost(worker, "hung", f"no result within {self._limit:g} s")

    def _heard(self, worker: _Worker, kind: str, what: Any) -> Iterator[Any]:
        worker.since = time.monotonic()
        if kind == READY:
            worker.ready = True
        elif kind == START:
            worker.case, worker.vendors_turn = str(what), False
        elif kind == VENDOR:
            worker.vendors_turn = True
        elif kind == DONE:
            worker.done.append(what.case)
            worker.case = ""
            yield what
        elif kind == LOST and worker.group:
            self._workers.remove(worker)
            _stop(worker)
            self._pending.appendleft((worker.group, worker.done))
        elif kind == END and not worker.ready:
            raise LostWorkerError(f"the vendor could not be loaded:\n{what}")
        elif kind == END:
            worker.group = None
            self.groups_done += 1

    def _deadline(self, worker: _Worker) -> float:
        if not worker.ready or not worker.case:
            return worker.since + max(START_SECONDS, self._limit)
        return worker.since + self._limit

    def _lost(self, worker: _Worker, status: str, message: str) -> Iterator[Result]:
        """The result of the case that took its worker with it; the rest of its group goes on."""
        if not worker.ready:
            raise LostWorkerError(f"a worker did not start: {message}")
        self._workers.remove(worker)
        seconds = time.monotonic() - worker.since
        _stop(worker)
        group = worker.group
        if group is None:
            return
        case = worker.case or f"{group}.0/samples/plain"
        if worker.vendors_turn:
            finding = Finding(status, message)
            yield Result(case, status, "F", (finding,), (status,), seconds=round(seconds, 3))
        else:  # the CPU's own crash or hang is not the vendor's
            yield Result(case, "skipped", reason=f"the CPU itself {status}: {message}")
        lost = self._losses[group] = self._losses.get(group, 0) + 1
        if worker.case and lost < GIVE_UP:
            self._pending.appendleft((group, [*worker.done, case]))
        else:  # its samples cannot be made here, or it goes on like this
            self.groups_done += 1
            if worker.case:
                reason = f"{lost} cases of this group took their process with them"
                yield Result(f"{group}.0/rest/plain", "skipped", reason=reason)

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        line = [sys.executable, "-X", "faulthandler", "-m", "diopi.conformance.worker"]
        process = subprocess.Popen(
            [*line, str(theirs.fileno()), str(self._options)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # so that what a kernel starts can be ended with it
        )
        theirs.close()
        return _Worker(process, ours, said, time.monotonic())


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
    text = worker.said.read().decode("utf-8", "replace")
    _, mark, account = text.rpartition("Fatal Python error: ")
    last = " ".join((account or text).split())
    shown = last[:TAIL] if mark else last[-TAIL:]
    return f"{name}: {shown}" if shown else name


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    worker.said.close()
