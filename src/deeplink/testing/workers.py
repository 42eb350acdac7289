# SPDX-License-Identifier: Apache-2.0
"""Worker processes: one that dies or hangs costs what it was doing, no more.

A pool decides what its workers do; here is what every pool needs. A worker is `python -m MODULE`,
which connects, says and receives:

    line, options = workers.connect()
    while (task := line.receive()) is not workers.CLOSED:
        line.say(answer(task))
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from deeplink import settings

# torch's own product on the CPU
PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
TAIL = 300  # characters of what a dead process said last
NAP = 5.0  # seconds after which a pool looks around, at most
CRASHED, HUNG = "crashed", "hung"


def spare_the_cpu(probe: str = PROBE) -> str:
    """Some virtual machines announce AMX, and the CPU dies of it; what was done about it, if so.

    Without this such a crash of the CPU's would be told as a chip's, or end a measurement.
    """
    line = [sys.executable, "-c", probe]
    done = subprocess.run(line, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != -signal.SIGILL:
        return ""
    return (
        "this CPU announces instructions that it does not have (torch's own bfloat16 product ends "
        f"with SIGILL): it is run with {settings.leave_out_amx()}"
    )


@dataclass(frozen=True)
class Lost:
    """What became of a worker that gives no answer."""

    status: str
    message: str


class Worker:
    """A process, the pipe to it, and since when it has been at what it does."""

    def __init__(self, module: str, options: Mapping[str, Any]) -> None:
        self.pipe, theirs = Pipe()
        self.since, self._queued_before = time.monotonic(), 0.0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        life, ours = os.pipe()  # nobody writes to it: it closes when we end, however we do
        self._life = open(ours, "wb")  # noqa: SIM115
        numbers = theirs.fileno(), life
        line = [sys.executable, "-X", "faulthandler", "-m", module]
        self._process = subprocess.Popen(
            [*line, *map(str, numbers), json.dumps(dict(options))],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=numbers,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        theirs.close()
        os.close(life)

    def give(self, what: Any) -> None:
        """Something to do; its time begins."""
        self.begin()
        with contextlib.suppress(OSError):  # it died just now: seen when we listen
            self.pipe.send(what)

    def begin(self) -> None:
        """Its time begins."""
        self.since, self._queued_before = time.monotonic(), self._queued()

    def seconds(self) -> float:
        """How long it has been at what it does, without what it waited for a processor."""
        return time.monotonic() - self.since - (self._queued() - self._queued_before)

    def _queued(self) -> float:
        """Seconds in all that it was ready to run, and others ran."""
        try:
            with open(f"/proc/{self._process.pid}/schedstat") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # gone, or a system that does not count it
            return self._queued_before

    def stop(self) -> None:
        """Ends it, and what it started."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._life.close()
        self._said.close()

    def how(self) -> str:
        """How it died: the signal or the exit code, and what was said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe is closed: gone in a moment
            self._process.wait(NAP)
        code = self._process.poll()
        name = f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):  # a signal without a name
                name = signal.Signals(-code).name
        self._said.seek(0)
        last = _last_words(self._said.read().decode("utf-8", "replace"))
        return f"{name}: {last}" if last else name


AnyWorker = TypeVar("AnyWorker", bound=Worker)


def listen(
    workers: Collection[AnyWorker], limit: Callable[[AnyWorker], float]
) -> Iterator[tuple[AnyWorker, Any]]:
    """What workers say, once: each with its message, or Lost when it died or was over its limit."""
    silent = {worker.pipe: worker for worker in workers}
    left = min((limit(worker) - worker.seconds() for worker in workers), default=0.0)
    for pipe in wait(list(silent), timeout=max(0.0, min(left, NAP))):
        worker = silent.pop(pipe)  # type: ignore[call-overload]
        try:
            said = pickle.loads(worker.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            said = Lost(CRASHED, f"the process died with {worker.how()}")
        yield worker, said
    for worker in silent.values():
        if worker.seconds() > limit(worker):
            yield worker, Lost(HUNG, f"no result within {limit(worker):g} s")


def threads(jobs: int) -> int:
    """Of one process, when so many share this machine."""
    return max(1, (os.cpu_count() or 1) // jobs)


def _last_words(text: str) -> str:
    """Python's own account of a crash, from its first line on; else the end of the output."""
    before, mark, account = text.rpartition("Fatal Python error: ")
    if not mark:
        return " ".join(text.split())[-TAIL:]
    said = " ".join(before.split())[-TAIL:]  # a library may have said why it gives up
    stack = " ".join(account.partition("Extension modules: ")[0].split())[:TAIL]
    return f"{said} {mark}{stack}".strip()


# The other side.

CLOSED = object()  # what is received when nobody asks any more


class Line:
    """The worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def say(self, what: Any) -> None:
        # by value: torch's own way through a pipe shares the memory of a process that may die
        self._pipe.send_bytes(pickle.dumps(what))

    def receive(self) -> Any:
        """What there is to do; CLOSED when there is nothing more."""
        try:
            return self._pipe.recv()
        except EOFError:
            return CLOSED


def connect() -> tuple[Line, dict[str, Any]]:
    """The line of a worker process, and the options that it was started with."""
    _, pipe, life, options = sys.argv
    _end_with(int(life))
    return Line(Connection(int(pipe))), json.loads(options)


def _end_with(life: int) -> None:
    """Lets the system end this process and what it starts when the other end of a pipe closes.

    No thread waits for that: a kernel that hangs may never let one run.
    """
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(life, 0)
    if ended.poll(0):  # before we asked
        sys.exit(1)
