# SPDX-License-Identifier: Apache-2.0
"""Where the tools write: the root, a name that no other process has, and what may be written."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from deeplink import identity, settings
from deeplink.errors import SettingError

_names: dict[tuple[Path, int], str] = {}
_described: set[tuple[Path, int]] = set()  # by root and process
_lock = threading.Lock()


def folder(kind: str) -> Path:
    """A folder under OP_TOOLS_RESULTS, made when it is not there; SettingError when it cannot be.

    `kind` is its name: op_capture_results, op_statistics_result, …
    """
    root = settings.OP_TOOLS_RESULTS.get()
    path = root / kind
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}-{threading.get_ident()}"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
        _describe(root)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written: {error.strerror or error}.",
            "set OP_TOOLS_RESULTS to a folder that you may write and that has room.",
        ) from None
    return path


def _describe(root: Path) -> None:
    """Write run_pid….json once for each process: its device, vendor, versions and command."""
    key = root.resolve(), os.getpid()
    with _lock:
        if key in _described:
            return
        _described.add(key)
    stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
    about = {"kind": "run", "pid": os.getpid(), "command": sys.argv, "begin": time.time()}
    about |= identity.current().as_dict()
    path = root / f"run_pid{os.getpid()}_{stamp}{rank()}.json"
    path.write_text(json.dumps(about, indent=1), encoding="utf-8")


def devices(place: Path, files: Iterable[Path] = ()) -> list[str]:
    """Name the devices that a run was made on: of the processes that wrote these files of it.

    `place` is a folder of results, or a file in one; without files every process counts.
    """
    folders = [place] if place.is_dir() else [place.parent, place.parent.parent]
    written = {number for file in files for number in re.findall(r"\d+", "/".join(file.parts[-5:]))}
    found: dict[str, None] = {}
    for folder in folders:
        pattern = "run_pid*.json"
        for file in sorted(folder.rglob(pattern) if place.is_dir() else folder.glob(pattern)):
            try:
                about = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # cut off: its process was killed while it wrote
            made = identity.read(about)
            if made is not None and (not written or str(about.get("pid")) in written):
                found[str(made)] = None
    return list(found)


def owner(path: Path) -> str:
    """The name of this process under a folder: its pid, as in the classic tools.

    A pid may be another process's too: of another host or container on the same file system, or
    of an earlier run. Who comes second gets the host's name behind it, and then a number.
    """
    key = path.resolve(), os.getpid()
    with _lock:
        if key not in _names:
            _names[key] = _claim(path / ".owners", str(os.getpid()))
        return _names[key]


def rank() -> str:
    """What a file's name says of the rank, "-rank0of8"; nothing where there is one process."""
    world = settings.world()
    return f"-rank{settings.rank()}of{world}" if world > 1 else ""


def _claim(claims: Path, pid: str) -> str:
    claims.mkdir(parents=True, exist_ok=True)
    host = "".join(c if c.isalnum() or c in "-_" else "_" for c in socket.gethostname())
    number = 1
    name = pid
    while not _create(claims / name):
        name = f"{pid}-{host}" if number == 1 else f"{pid}-{host}-{number}"
        number += 1
    return name


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def free_space() -> int:
    """Bytes that are free where the results go."""
    place = settings.OP_TOOLS_RESULTS.get().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


class Budget:
    """Bytes that this process has written, against OP_TOOLS_DISK_BUDGET; 0: no limit."""

    def __init__(self) -> None:
        self.spent = 0
        self._lock = threading.Lock()

    def allows(self, size: int, share: float = 1.0) -> bool:
        """Whether so many bytes more stay within a share of the budget."""
        limit = settings.OP_TOOLS_DISK_BUDGET.get()
        return limit <= 0 or self.spent + size <= limit * share

    def spend(self, size: int) -> None:
        with self._lock:
            self.spent += size


budget = Budget()
