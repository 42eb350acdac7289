# SPDX-License-Identifier: Apache-2.0
"""Where the tools write: folders, names that are unique to a process, and the disk budget."""

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
from functools import lru_cache
from pathlib import Path

from deeplink import identity, settings
from deeplink.errors import SettingError
from deeplink.i18n import _

_names: dict[tuple[Path, int], str] = {}
_described: set[tuple[Path, int]] = set()  # by root and process
_lock = threading.Lock()


def folder(kind: str) -> Path:
    """Make the folder `kind` (op_capture_results, …) under OP_TOOLS_RESULTS, and return its path.

    SettingError when the folder cannot be written.
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
            _("{path} cannot be written: {strerror}.").format(
                path=path, strerror=error.strerror or error
            ),
            _("set OP_TOOLS_RESULTS to a folder that you may write, on a disk with free space."),
        ) from None
    return path


def _describe(root: Path) -> None:
    """Write run_pid….json once for each process: its device, vendor, versions and command."""
    key = root.resolve(), os.getpid()
    with _lock:
        if key in _described:
            return
        _described.add(key)
    about = {"kind": "run", "pid": os.getpid(), "command": sys.argv, "begin": time.time()}
    about |= identity.current().as_dict()
    path = root / f"run_pid{os.getpid()}_{stamp()}{rank()}.json"
    path.write_text(json.dumps(about, indent=1), encoding="utf-8")


def devices(place: Path, files: Iterable[Path] = ()) -> list[str]:
    """Name the devices that the processes of a run used, those that wrote `files`.

    `place` is a folder of results, or a file in one; without files every process counts.
    """
    folders = [place] if place.is_dir() else [place.parent, place.parent.parent]
    writers = {number for file in files for number in re.findall(r"\d+", "/".join(file.parts[-5:]))}
    names: dict[str, None] = {}
    for folder in folders:
        pattern = "run_pid*.json"
        for file in sorted(folder.rglob(pattern) if place.is_dir() else folder.glob(pattern)):
            try:
                about = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # truncated: the process was killed while it wrote
            device = identity.read(about)
            if device is not None and (not writers or str(about.get("pid")) in writers):
                names[str(device)] = None
    return list(names)


def owner(path: Path) -> str:
    """The name of this process in a folder: its pid, as in the classic tools.

    On a shared file system another process may have the pid: then the name of the host is appended,
    and then a number.
    """
    key = path.resolve(), os.getpid()
    with _lock:
        if key not in _names:
            _names[key] = _claim(path / ".owners", str(os.getpid()))
        return _names[key]


def rank() -> str:
    """The rank in the name of a file, "-rank0of8"; empty for a run of one process."""
    world = settings.world()
    return f"-rank{settings.rank()}of{world}" if world > 1 else ""


def stamp() -> str:
    """The local time as it stands in the names of files."""
    return _stamp(int(time.time()))


@lru_cache(4)  # the header of each call has one
def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(second))


def create(path: Path) -> Path:
    """Create an empty file that did not exist: `path`, else `path` with a number in its name."""
    number, free = 1, path
    while True:
        try:
            free.touch(0o644, exist_ok=False)
            return free
        except FileExistsError:
            number += 1
            free = path.with_name(f"{path.stem}-{number}{path.suffix}")


def _claim(claims: Path, pid: str) -> str:
    claims.mkdir(parents=True, exist_ok=True)
    try:
        (claims / pid).touch(0o644, exist_ok=False)
        return pid
    except FileExistsError:
        host = "".join(c if c.isalnum() or c in "-_" else "_" for c in socket.gethostname())
        return create(claims / f"{pid}-{host}").name


def free_space() -> int:
    """Free bytes of the disk that holds the results."""
    place = settings.OP_TOOLS_RESULTS.get().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


class Budget:
    """Bytes that this process has written, against OP_TOOLS_DISK_BUDGET."""

    def __init__(self) -> None:
        self.spent = 0
        self._lock = threading.Lock()

    def allows(self, size: int) -> bool:
        """Whether `size` bytes more stay within the budget; a budget of 0 is no limit."""
        limit = settings.OP_TOOLS_DISK_BUDGET.get()
        return limit <= 0 or self.spent + size <= limit

    def spend(self, size: int) -> None:
        """Count `size` bytes."""
        with self._lock:
            self.spent += size


budget = Budget()
