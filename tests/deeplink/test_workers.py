"""A worker ends with the process that started it, however that one ends and whatever it is at."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]

# It hangs in a call that lets no other thread of Python run; what it started hangs too.
WORKER = """
import ctypes, os, subprocess
from deeplink import workers

line, _ = workers.connect()
child = subprocess.Popen(["sleep", "600"])
line.say((os.getpid(), child.pid))
ctypes.PyDLL(None).sleep(600)
"""

PARENT = """
import signal
from deeplink import workers

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
