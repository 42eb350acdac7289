"""Programs in processes of their own that need not import torch again: forked from one that has.

What they get is what `python` would give them: arguments, environment, streams, a fresh `__main__`,
torch's entry points, and an end of their own. Only the imports of torch
and of what it and we import later (sympy, rich) are not theirs.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LARGEST = 1 << 17  # bytes of a request: a program and its environment
_ONE = threading.Lock()  # at a time


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    warn: str = "error",
    given: str = "",
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Return the output of `python -W warn …` for arguments (-c, -m or a file) and an input."""
    request = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd())}
    with _ONE, _file() as stdin, _file() as stdout, _file() as stderr:
        server = _server()
        server.settimeout(timeout)
        stdin.write(given.encode())
        stdin.seek(0)
        files = [file.fileno() for file in (stdin, stdout, stderr)]
        message = json.dumps({**request, "warn": warn}).encode()
        socket.send_fds(server, [message], files)
        pid = int(server.recv(LARGEST))
        try:
            status = int(server.recv(LARGEST))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            server.recv(LARGEST)
            raise subprocess.TimeoutExpired(list(arguments), timeout, _text(stdout)) from None
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(list(arguments), code, _text(stdout), _text(stderr))


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@functools.cache
def _server() -> socket.socket:
    """The process that has imported torch, by its socket; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    compiled = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno()), compiled.name],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()
        compiled.cleanup()

    atexit.register(end)
    return ours


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return the request in the child, and None at the end."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            connection.close()
            for stream, file in enumerate(files):
                os.dup2(file, stream)
                os.close(file)
            found: dict[str, Any] = json.loads(message)
            return found
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        connection.send(str(os.waitpid(pid, 0)[1]).encode())


def _become(request: dict[str, Any]) -> None:
    """Run the requested program, as `__main__`."""
    import torch

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    warnings.resetwarnings()
    warnings.simplefilter(request["warn"])
    sys.warnoptions[:] = [request["warn"]]
    try:
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            torch._import_device_backends()  # what `import torch` ends with
        _execute(*request["arguments"])
    except SystemExit:
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


def _execute(first: str, *rest: str) -> None:
    """`python -m module …`, `python -c source …` or `python file …`."""
    sys.argv[:] = [first, *rest]
    sys.path[0] = str(Path.cwd())
    if first == "-m":
        sys.argv.pop(0)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.argv.pop(1)
        sys.path[0] = ""
        source, name = rest[0], "<string>"
    else:
        main.__file__ = name = str(Path(first).absolute())
        sys.path[0] = str(Path(name).parent)
        source = Path(name).read_text("utf-8")
    exec(compile(source, name, "exec"), main.__dict__)


if __name__ == "__main__":
    # once for all: torch, and what it and we import when something is first computed or shown
    for _library in ("torch", "sympy", "rich.console", "rich.table"):
        importlib.import_module(_library)
    if sys.dont_write_bytecode:  # then each of them would compile our sources again
        sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[2]

    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _request is not None:
        _become(_request)
