"""A worker that does to itself what its task's name says; for the tests of the workers."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from tests.opinfo.core import Outcome


def serve(pipe: Connection) -> None:
    """Answers, dies or hangs, by the name of the op."""
    pipe.send("ready")
    while True:
        task, _ = pipe.recv()
        if task.op == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.op == "hangs":
            signal.pause()
        pipe.send(Outcome(task.op, task.dtype, (1, 1)))
