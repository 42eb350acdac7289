# SPDX-License-Identifier: Apache-2.0
"""Worker processes: a crash or hang costs only the task in progress.

A pool decides what its workers do; this module has what every pool needs. A worker is
`python -m MODULE`, which connects, receives tasks and sends answers:

    line, options = workers.connect()
    while (task := line.receive()) is not workers.CLOSED:
        line.send(answer(task))
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
TAIL = 300  # characters of a dead process's last output
NAP = 5.0  # maximum seconds between two checks of a pool
CRASHED, HUNG = "crashed", "hung"


def spare_the_cpu(probe: str = PROBE) -> str:
    """Disable AMX where the CPU announces it but does not have it; return what was done, or "".

    On such virtual machines a crash of the CPU would be reported as one of the chip, or end a
    measurement.
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
    """Why a worker gives no answer."""

    status: str
    message: str


class Worker:
    """A process, the pipe to it, and the start time of its task."""

    def __init__(
        self, module: str, options: Mapping[str, Any], values: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; `values` are variables of its environment."""
        self.pipe, theirs = Pipe()
        self.since, self._queued_before = time.monotonic(), 0.0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        # no one writes to it: it closes when this process ends for any reason
        life, ours = os.pipe()
        self._life = open(ours, "wb")  # noqa: SIM115
        numbers = theirs.fileno(), life
        line = [sys.executable, "-X", "faulthandler", "-m", module]
        self._process = subprocess.Popen(
            [*line, *map(str, numbers), json.dumps(dict(options))],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=settings.environment(values or {}),
            pass_fds=numbers,
            start_new_session=True,  # so that its child processes can be ended with it
        )
        theirs.close()
        os.close(life)

    def assign(self, what: Any) -> None:
        """Send a task and start its time."""
        self.begin()
        with contextlib.suppress(OSError):  # the worker has just died, which `listen` reports
            self.pipe.send(what)

    def begin(self) -> None:
        """Restart the time of the task in progress."""
        self.since, self._queued_before = time.monotonic(), self._queued()

    def seconds(self) -> float:
        """Return the seconds since the task began,
        without the time spent waiting for a processor.
        """
        return time.monotonic() - self.since - (self._queued() - self._queued_before)

    def _queued(self) -> float:
        """Return the total seconds in which the process was runnable but not running."""
        try:
            with open(f"/proc/{self._process.pid}/schedstat") as file:
                return int(file.read().split()[1]) / 1e9
        # the process has ended, or the system does not provide the counter
        except (OSError, IndexError):
            return self._queued_before

    def stop(self) -> None:
        """Kill the process and its child processes."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._life.close()
        self._said.close()

    def how(self) -> str:
        """Describe how the process died: signal or exit code, and its last output."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe is closed, so it ends soon
            self._process.wait(NAP)
        code = self._process.poll()
        name = f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):  # a signal without a name
                name = signal.Signals(-code).name
        self._said.seek(0)
        last = _crash_report(self._said.read().decode("utf-8", "replace"))
        return f"{name}: {last}" if last else name


AnyWorker = TypeVar("AnyWorker", bound=Worker)


def listen(
    workers: Collection[AnyWorker], limit: Callable[[AnyWorker], float]
) -> Iterator[tuple[AnyWorker, Any]]:
    """Receive messages of the workers once: each with its message,
    or Lost if it died or timed out.
    """
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
    """Return the number of threads for each of `jobs` processes on this machine."""
    return max(1, (os.cpu_count() or 1) // jobs)


def _crash_report(text: str) -> str:
    """Return Python's crash report from its first line on; else the end of the output."""
    before, mark, account = text.rpartition("Fatal Python error: ")
    if not mark:
        return " ".join(text.split())[-TAIL:]
    said = " ".join(before.split())[-TAIL:]  # a library may have printed why it aborts
    stack = " ".join(account.partition("Extension modules: ")[0].split())[:TAIL]
    return f"{said} {mark}{stack}".strip()


# In the worker process.

CLOSED = object()  # received when there are no more tasks


class Line:
    """The worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, what: Any) -> None:
        # by value: torch's own pickling shares memory of a process that may die
        self._pipe.send_bytes(pickle.dumps(what))

    def receive(self) -> Any:
        """Wait for the next task; CLOSED when there are no more."""
        try:
            return self._pipe.recv()
        except EOFError:
            return CLOSED


def connect() -> tuple[Line, dict[str, Any]]:
    """Return the line of a worker process and the options that it was started with."""
    _, pipe, life, options = sys.argv
    _end_with(int(life))
    return Line(Connection(int(pipe))), json.loads(options)


def _end_with(life: int) -> None:
    """Let the system end this process group when the other end of a pipe closes.

    A signal is used instead of a thread: a hanging kernel may block all threads of Python.
    """
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(life, 0)
    if ended.poll(0):  # it closed before the handler was installed
        sys.exit(1)
