"""The end of a program waits for the threads that still hold its tensors."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import hashlib, threading
from deeplink.process import gloo_shutdown

ended = threading.Event()

def work():
    while not ended.is_set():
        hashlib.sha256(bytes(1 << 22)).digest()  # without the GIL, as gloo's threads run

thread = threading.Thread(target=work)
thread.start()
busy = gloo_shutdown.wait_for_rest(patience=0.2)
ended.set()
thread.join()
print(busy, gloo_shutdown.wait_for_rest())
"""


def test_a_thread_at_work_is_waited_for_and_one_at_rest_is_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["False", "True"]
