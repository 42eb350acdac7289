"""The exit of a program that does not stop its tools, and of a forked child."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from op_tools.core import lifecycle, worker
from op_tools.core.worker import Background
from tests.torch_dipu.interpreter import output_of, run_python

CHILD = """
import gc, os, signal, sys, threading, time, warnings
import torch, torch_dipu, op_tools

warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads: this is it
def child(leave):
    pid = os.fork()
    if not pid:
        signal.alarm(100)  # it hangs
        leave()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

x = torch.ones(4, device="dipu")
"""
TOOLS = """
kinds = [
    op_tools.OpCapture, lambda: op_tools.OpCapture(format="packed"), op_tools.OpOverflowCheck,
    lambda: op_tools.OpCapture(mode="hash"), lambda: op_tools.OpAutoCompare(background=True),
    op_tools.OpTimeMeasure, op_tools.FlightRecorder,
]
def leave():
    global tool
    tool.stop()
    del tool
    gc.collect()
    os._exit(7)  # with a word from each; all of the end takes long
for kind in kinds:
    tool = kind().start()
    for _ in range(300):  # enough for the thread that asks for times
        x.sin()
    print("child", child(leave), flush=True)
    tool.stop()
for kind in kinds:
    kind().start()
x.sin()
print("child", child(lambda: sys.exit(7)), flush=True)
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_forked_child_ends_without_its_parents_tools(native: str, tmp_path: Path) -> None:
    found = output_of(CHILD + TOOLS, OP_TOOLS_NATIVE=native, OP_TOOLS_RESULTS=str(tmp_path))
    words = found.splitlines()
    assert [word for word in words if word.startswith("child")] == ["child 7"] * 8
    assert found.count("OpOverflowCheck: 300 calls") == 1  # by the parent
    assert sum(word.startswith("FlightRecorder: 0 steps") for word in words) == 1
    lines = [p.read_text().splitlines() for p in tmp_path.glob("op_statistics_result/*.jsonl")]
    assert sorted(len(each) for each in lines) == [1, 300]


def test_a_forked_child_has_tools_of_its_own() -> None:
    source = """
def own():
    with op_tools.OpOverflowCheck(ops="torch.Tensor.cos", devices=["cpu"]):
        torch.ones(2).sin(), torch.ones(2).cos()
    os._exit(0)
child(own)
with op_tools.OpFallback(ops="torch.Tensor.sin", devices=["dipu"]):
    child(own)
    x.sin()
"""
    found = output_of(CHILD + source)
    assert found.count("OpOverflowCheck: 1 call checked") == 2
    assert found.count("OpFallback: 1 call") == 1


def test_a_childs_end_leaves_the_record_of_an_iteration(tmp_path: Path) -> None:
    source = f"""
net = torch.nn.Linear(4, 2).to("dipu")
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
try:
    with op_tools.OneIteration({str(tmp_path)!r}):
        y = net(x)
        print("child", child(lambda: sys.exit(7)))
        y.sum().backward()
        sgd.step()
except SystemExit as leaving:
    os._exit(leaving.code)  # the rest of the end takes long
"""
    assert "child 7" in output_of(CHILD + source).splitlines()
    assert [path.suffix for path in tmp_path.iterdir()] == [".opcap"]


def test_a_tool_that_fails_at_the_end_leaves_it_to_the_others() -> None:
    source = """
class Failing(op_tools.OpOverflowCheck):
    def finish(self, started):
        raise OSError("no space left")
op_tools.OpFallback(ops="torch.Tensor.sin").start()
Failing().start()
x.sin()
"""
    done = run_python(CHILD + source)
    assert "OpFallback: 1 call of 1 operator" in done.stdout
    assert "no space left" in done.stderr


def test_the_end_waits_for_work_in_the_background() -> None:
    source = """
from op_tools.core.worker import Background
begun = threading.Event()
def work():
    begun.set()
    time.sleep(0.3)
    print("done")
Background("verdicts").put(work)
begun.wait()
"""
    assert output_of(CHILD + source) == "done"


def test_work_that_never_ends_does_not_keep_the_process() -> None:
    source = """
from op_tools.core import worker
worker.NOTICE, worker.PATIENCE = 0.1, 0.2
verdicts = worker.Background("verdicts")
verdicts.put(lambda: sys.stdout.write("done\\n"))
for _ in range(3):
    verdicts.put(threading.Event().wait)
sys.stdout.write("trained\\n")
"""
    done = run_python(CHILD + source)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["done", "trained"]
    assert "op_tools: waits for verdicts (3 pending)" in done.stderr
    assert "op_tools: no longer waits for verdicts: none in 0 s. The results lack 3" in done.stderr


def test_the_end_waits_as_long_as_pieces_of_work_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "NOTICE", 0.0)
    background, turns = worker.Background("verdicts"), threading.Semaphore(0)
    for _ in range(3):
        background.put(turns.acquire)
    monkeypatch.setattr(background, "_report", lambda text: turns.release())
    assert background.close()
    assert background._finished == 3


def test_a_tool_ends_before_the_thread_that_waits_for_its_end() -> None:
    source = """
from op_tools.core.worker import Background
ended = threading.Event()
class Working(op_tools.OpOverflowCheck):
    def finish(self, started):
        ended.set()
        self.thread.close()
        print("finished")
tool = Working().start()
tool.thread = Background("verdicts")  # the younger one
tool.thread.put(ended.wait)
"""
    assert output_of(CHILD + source) == "finished"


def test_an_interrupted_stop_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, background = threading.Event(), Background("verdicts")
    background.put(going_on.wait)

    def interrupted() -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(background, "_wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                background.close()
        assert (True, background) in lifecycle._open
    finally:
        going_on.set()  # else a failure here would leave pytest waiting at its end
    background.close()  # as the end of Python does
    assert not background._threads[0].is_alive()
    assert (True, background) not in lifecycle._open


def lines_of(folder: Path) -> list[dict[str, Any]]:
    found = (folder / "recorder").glob("*.jsonl")
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_a_recorder_that_is_never_stopped_writes_its_last_steps(tmp_path: Path) -> None:
    source = """
op_tools.FlightRecorder().start()
net = torch.nn.Linear(4, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(50):
    net(torch.ones(4)).sum().backward()
    sgd.step()
child(lambda: (__import__("atexit")._run_exitfuncs(), os._exit(0)))
"""
    output_of(CHILD + source, OP_TOOLS_RESULTS=str(tmp_path))
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == list(range(50))
    assert [line["steps"] for line in lines if "end" in line] == [50]


def test_a_signal_ends_the_program_whatever_the_recorder_does(tmp_path: Path) -> None:
    source = """
recorder = op_tools.FlightRecorder().start()
recorder.ring.keep = None
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = run_python(CHILD + source, OP_TOOLS_RESULTS=str(tmp_path))
    assert done.returncode == -signal.SIGTERM


def test_a_signal_ends_a_program_that_hangs_in_c(tmp_path: Path) -> None:
    source = """
import ctypes
held, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
recorder = op_tools.FlightRecorder().start()
lock(held)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
lock(held)
"""
    done = run_python(CHILD + source, OP_TOOLS_RESULTS=str(tmp_path))
    assert done.returncode == -signal.SIGTERM
    events = [line for line in lines_of(tmp_path) if line.get("event") == "signal"]
    assert any('File "<string>"' in line for line in events[0]["stack"])


def test_a_signal_to_a_child_is_not_the_programs() -> None:
    source = """
from op_tools.diagnosis.flight_recorder.signal_thread import Unheard
unheard = Unheard()
def signalled():
    signal.signal(signal.SIGTERM, lambda *given: None)
    os.kill(os.getpid(), signal.SIGTERM)
child(lambda: (signalled(), os._exit(0)))
print(unheard.wait(60))
signalled()
print(unheard.wait(60))
unheard.close()
print(signal.set_wakeup_fd(-1))
"""
    assert output_of(CHILD + source).split() == ["0", "15", "-1"]
