"""A command's children end with it, even when it is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deeplink.process import children

CHILD = "import time; print('up', flush=True); time.sleep(60); print('still here')"
PARENT = """
import runpy, sys
children = runpy.run_path(sys.argv[1])
children["run"]([sys.executable, "-S", "-c", sys.argv[2]])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is of Linux")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    line = [sys.executable, "-S", "-c", PARENT, children.__file__, CHILD]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.kill()
        assert parent.stdout.read() == b""  # closed by both: the child has not come to its end


def test_a_child_that_does_not_want_to_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "GRACE", 0.05)
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = children.start([sys.executable, "-S", "-c", deaf], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        children.end(child)
    assert child.returncode == -9


def test_the_status_is_the_childs() -> None:
    assert children.run([sys.executable, "-S", "-c", "raise SystemExit(3)"]) == 3
