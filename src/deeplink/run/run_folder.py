# SPDX-License-Identifier: Apache-2.0
"""The folder of one run: the files of its tools, and run.json with how the run was started.

<results>/2026-11-19_10-30-00_4711/run.json …
<results>/latest -> the newest of them
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deeplink import __version__, identity, settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run.runner import Request

RECORD = "run.json"
LATEST = "latest"
FINDINGS = "findings_pid*.json"  # written by op_tools, one per process


class RunFolder:
    """A run in progress; `finish` completes its record."""

    def __init__(self, path: Path, command: Sequence[str]) -> None:
        self.path = path
        self._begun = time.monotonic()
        self._record: dict[str, Any] = {
            "kind": "run",
            "version": 1,
            "command": shlex.join(command),
            "folder": os.getcwd(),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "deeplink": __version__,
            **identity.chosen().as_dict(),
            "status": None,  # None while the program runs
            "seconds": None,
            "findings": {},
        }
        self._write()

    @classmethod
    def of(cls, request: Request, command: Sequence[str]) -> RunFolder:
        """Create the folder: the requested one, else a new one in the results folder.

        Raise DeeplinkError when it cannot be written.
        """
        asked = request.values.get(settings.OP_TOOLS_RESULTS.name, "")
        root = settings.OP_TOOLS_RESULTS.get()
        own = not asked and not settings.OP_TOOLS_RESULTS.is_set()
        now = datetime.now()
        path = root / f"{now:%Y-%m-%d_%H-%M-%S}_{os.getpid()}" if own else Path(asked or root)
        try:
            path.mkdir(parents=True, exist_ok=True)
            made = cls(path, command)
        except OSError as error:
            raise DeeplinkError(
                _("{path} cannot be written: {strerror}.").format(
                    path=path, strerror=error.strerror or error
                ),
                _("-o DIR names a folder that you may write with free space."),
            ) from None
        if own:
            point(root / LATEST, path.name)
        return made

    def finish(self, status: int) -> dict[str, int]:
        """Record the exit status; return the number of findings of each kind."""
        found: Counter[str] = Counter()
        for file in self.path.glob(FINDINGS):
            with contextlib.suppress(OSError, ValueError):
                found.update(json.loads(file.read_text("utf-8")))
        seconds = round(time.monotonic() - self._begun, 3)
        self._record |= {"status": status, "seconds": seconds, "findings": dict(found)}
        with contextlib.suppress(OSError):  # the disk is full: the program's status counts
            self._write()
        return dict(found)

    def _write(self) -> None:
        text = json.dumps(self._record, indent=1) + "\n"
        (self.path / RECORD).write_text(text, encoding="utf-8")


def latest(folder: Path) -> Path:
    """Return the newest run in a results folder; the folder itself where it has no such link."""
    found = folder / LATEST
    return found.resolve() if found.is_symlink() and found.exists() else folder


def write_findings(folder: Path, found: dict[str, int]) -> None:
    """Write the findings of this process for `finish`; op_tools calls this when its tools stop."""
    if (folder / RECORD).is_file():
        with contextlib.suppress(OSError):
            file = folder / FINDINGS.replace("*", str(os.getpid()))
            file.write_text(json.dumps(found), encoding="utf-8")


def point(link: Path, target: str) -> None:
    """Point a link to a sibling folder; does nothing on a file system without links."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        fresh.symlink_to(target)
        fresh.replace(link)
