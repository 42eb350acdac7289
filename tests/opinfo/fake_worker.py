"""A worker that crashes or hangs as its task's name selects, for the tests of the pool."""

from __future__ import annotations

import os
import signal

from deeplink.testing import workers
from tests.opinfo.outcome import Outcome
from tests.opinfo.workers import READY


def main() -> None:
    """Answers, dies or hangs, by the name of the op."""
    line, _ = workers.connect()
    line.send(READY)
    while (given := line.receive()) is not workers.CLOSED:
        task, _ = given
        if task.op == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if task.op == "hangs":
            signal.pause()
        line.send(Outcome(task.op, task.dtype, (1, 1)))


if __name__ == "__main__":
    main()
