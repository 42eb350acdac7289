# SPDX-License-Identifier: Apache-2.0
"""Fast starts of Python programs: each run is forked from a process that has imported torch.

    warm = Warm.of(line, environment)  # None: not a program of this Python, or no fork here
    run = warm.start(line, out, environment)
    run.wait(60)

A run gets what `python` would give it: arguments, environment, streams, a new `__main__`,
torch's entry points, its own session and exit. Only the import of torch is shared.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from deeplink import settings
from deeplink.process import children
from deeplink.run import runner

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's own variable
SERVER = """import sys
if sys.path[:1] == ['']: del sys.path[0]
from deeplink.run.fork_server import serve
serve(int(sys.argv[1]))"""
LAUNCHERS = (["deeplink"], ["torch.distributed.run"], ["torch.distributed.launch"])
MESSAGE = 64  # maximum bytes of a message
PATIENCE = 120.0  # seconds for the import of torch
READY, UNFIT = b"ready", b"unfit"


class Run:
    """A run, with the part of the interface of subprocess.Popen that is needed."""

    def __init__(self, pid: int, server: socket.socket) -> None:
        self.pid, self._server = pid, server
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise subprocess.TimeoutExpired when the run takes longer."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a run", timeout or 0.0)
            status = self._server.recv(MESSAGE)
            ended = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
            self.returncode = ended
        return self.returncode


class Warm:
    """The process that has imported torch; it and its runs end with this one."""

    def __init__(self, process: subprocess.Popen[bytes], server: socket.socket) -> None:
        self._process, self._server = process, server

    @classmethod
    def of(cls, line: Sequence[str], environment: Mapping[str, str]) -> Self | None:
        """Create a server for a command line; None if its runs cannot be forked."""
        if not (hasattr(os, "fork") and line[0] == sys.executable and _is_program(line[1:])):
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = children.start(
            [sys.executable, "-c", SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env={**environment, AUTOLOAD: "0"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        made = cls(process, ours)
        told = ours.recv(MESSAGE) if select.select([ours], [], [], PATIENCE)[0] else b""
        if told != READY:
            made.close()
            return None
        return made

    def start(self, line: Sequence[str], out: int, environment: Mapping[str, str]) -> Run:
        """Start a run of `line` with its output in a file;
        ConnectionError when the server has ended.
        """
        with tempfile.TemporaryFile("w+") as request:
            asked = {"line": list(line[1:]), "env": dict(environment), "cwd": os.getcwd()}
            json.dump(asked, request)
            request.seek(0)
            socket.send_fds(self._server, [b"run"], [out, request.fileno()])
            pid = self._server.recv(MESSAGE)
        if not pid:
            raise ConnectionError("the process that has imported torch has ended")
        return Run(int(pid), self._server)

    def close(self) -> None:
        """End the server process."""
        self._server.close()
        children.end(self._process)


def _is_program(rest: Sequence[str]) -> bool:
    """Whether a program can be forked: `train.py …`, `-m module …`,
    `deeplink run …`, no launcher.
    """
    if not rest:
        return False
    if rest[0] == "-m":
        return rest[1:3] == ["deeplink", "run"] or rest[1:2] not in ([], *LAUNCHERS)
    return rest[0].endswith(".py") and Path(rest[0]).is_file()


# In the server process.


def serve(number: int) -> None:
    """Fork for each request until the pipe closes; the fork becomes the program."""
    connection = socket.socket(fileno=number)
    _prepare()
    connection.send(UNFIT if _has_a_device() else READY)
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE, 2)
        if not message:
            return
        bound, pid = children.bound(), os.fork()
        if not pid:
            connection.close()
            if bound is not None:
                bound()
            _become(*files)
            return
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        connection.send(str(os.waitpid(pid, 0)[1]).encode())


def _prepare() -> None:
    """Import what every run needs: torch, and the modules that the first optimizer step imports."""
    import torch._dynamo  # noqa: F401


def _has_a_device() -> bool:
    """Whether a CUDA driver is initialised, which would not survive a fork."""
    try:
        count = ctypes.CDLL("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_NOW).cuDeviceGetCount
    except (OSError, AttributeError):
        return False  # the driver is not loaded
    return int(count(ctypes.byref(ctypes.c_int()))) != 3  # CUDA_ERROR_NOT_INITIALIZED


def _become(out: int, request: int) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(out, stream)
    with open(request, encoding="utf-8") as file:
        asked = json.load(file)
    os.close(out)
    os.chdir(asked["cwd"])
    settings.become(asked["env"])
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # as in a separate process
    try:
        if asked["env"].get(AUTOLOAD, "1") == "1":
            import torch

            torch._import_device_backends()  # as at the end of `import torch`
        runner.execute(*asked["line"])
    except SystemExit:
        raise
    except BaseException as error:
        frames = runner.own_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)
