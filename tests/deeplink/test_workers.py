"""A worker ends with the process that started it, however that one ends and whatever it is at."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from deeplink.testing import workers

HERE = Path(__file__).parents[2]

# It hangs in a call that lets no other thread of Python run; what it started hangs too.
WORKER = """
import ctypes, os, subprocess
from deeplink.testing import workers

line, _ = workers.connect()
child = subprocess.Popen(["sleep", "600"])
line.send((os.getpid(), child.pid))
ctypes.PyDLL(None).sleep(600)
"""

PARENT = """
import signal
from deeplink.testing import workers

worker = workers.Worker("hanging", {})
print(*worker.pipe.recv(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_hangs_ends_with_a_parent_that_was_killed(
    tmp_path: Path, how: signal.Signals
) -> None:
    (tmp_path / "hanging.py").write_text(WORKER)
    path = os.pathsep.join([str(HERE / "src"), str(tmp_path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with parent, ExitStack() as opened:
        assert parent.stdout
        processes = [os.pidfd_open(int(number)) for number in parent.stdout.readline().split()]
        for process in processes:
            opened.callback(os.close, process)
        parent.send_signal(how)
        assert len(processes) == 2
        for process in processes:
            ended, _, _ = select.select([process], [], [], 30)
            assert ended


class _Starved(workers.Worker):
    """Ready to run all the time, and never run."""

    def _queued(self) -> float:
        return time.monotonic()


@pytest.mark.parametrize(("kind", "lost"), [(workers.Worker, True), (_Starved, False)])
def test_what_a_worker_waits_for_a_processor_is_not_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[workers.Worker], lost: bool
) -> None:
    (tmp_path / "hanging.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE / "src"), str(tmp_path)]))
    worker = kind("hanging", {})
    worker.begin()
    try:
        worker.pipe.recv_bytes()  # it is there, and hangs
        worker.begin()
        time.sleep(0.3)
        said = [what for _, what in workers.listen([worker], lambda _: 0.2)]
        deadline = time.monotonic() + 60  # on a loaded machine it is not at once that it hangs
        while lost and not said and time.monotonic() < deadline:
            said = [what for _, what in workers.listen([worker], lambda _: 0.2)]
        assert [isinstance(what, workers.Lost) for what in said] == [True] * lost
    finally:
        worker.stop()
