"""The process monitor: rows while a process runs, a clean end with it, a clear no without it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deeplink.errors import DeeplinkError
from op_tools import process_monitor
from op_tools.process_monitor import Devices, Usage, find, samples, watch


def sleeper() -> subprocess.Popen[bytes]:
    """A process that holds 50 MB until its standard input is closed."""
    source = "import sys\nx = b'1' * (50 << 20)\nprint('ready', flush=True)\nsys.stdin.read()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_it_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("label", "night")
    monkeypatch.setattr(process_monitor, "devices", Devices)
    with sleeper() as process, ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch, process.pid, 0.05)
        folder = Path("op_tools_results/process_monitor_result")
        while sum(len(path.read_text().splitlines()) for path in folder.glob("*.csv")) < 4:
            assert not watching.done()
        process.kill()
        path = watching.result(timeout=60)
    assert path.parent == folder
    assert path.name.startswith(f"process_monitor_result__pid{process.pid}_night_")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == process_monitor.COLUMNS
    assert len(rows) >= 3
    assert max(float(row[4]) for row in rows) > 50  # MB: it holds so many, until it dies
    assert float(rows[0][0]) < float(rows[-1][0])


def test_a_process_that_ended_but_was_not_buried_counts_as_ended() -> None:
    with sleeper() as process:
        rows = samples(find(process.pid), 0.05, Devices())
        assert next(rows)
        process.kill()  # it stays as a zombie until a process waits for it
        for _ in rows:
            pass


def test_what_the_cpu_does_is_percent_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.125, 10.25])
    monkeypatch.setattr(process_monitor.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(process_monitor.time, "sleep", lambda seconds: None)

    class Made:
        usages = iter([Usage(1.0, 2**20), Usage(1.05, 2**21), None])

        def usage(self) -> Usage | None:
            return next(self.usages)

    (row,) = samples(Made(), 0.05, Devices("acme", lambda: [2**30, 2**30]))
    assert (row[0], row[3]) == ("0.125", "40.0")
    assert row[4:] == ["2.000", "2048.000", 2]


@pytest.mark.parametrize("pid", [2**30, -1])
def test_a_missing_process_is_refused(pid: int) -> None:
    with pytest.raises(DeeplinkError, match=f"there is no process {pid} to watch"):
        find(pid)


def test_the_command_says_so_and_fails() -> None:
    line = [sys.executable, "-m", "op_tools.process_monitor", "--pid", str(2**30)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"there is no process {2**30} to watch." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pid_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        process_monitor.main([])
    assert "--pid" in capsys.readouterr().err


def test_this_process_has_used_cpu_and_memory() -> None:
    usage = find(os.getpid()).usage()
    assert usage is not None and usage.memory > 2**20 and usage.cpu > 0
