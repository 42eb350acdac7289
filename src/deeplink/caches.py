# SPDX-License-Identifier: Apache-2.0
"""The caches on disk: built native parts and compiled graphs. A deleted entry is rebuilt on use."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from deeplink import native, settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _

# Files of the native build: libraries named by a hash, objects, folders of CMake, locks.
NATIVE = re.compile(r".+-[0-9a-f]{12}(\.so|\.cubin)?|objects|cmake|.+\.lock")
GRAPHS = re.compile(r"reports|failures|\w*graph")


@dataclass(frozen=True)
class Entry:
    """One folder or file of a cache."""

    cache: str  # "native" or "graphs"
    path: Path
    size: int  # bytes
    files: int


def folders() -> dict[str, Path]:
    """Return the folder of each cache."""
    return {"native": settings.DIPU_BUILD_DIR.get(), "graphs": settings.DICP_CACHE_DIR.get()}


def entries(cache: str = "") -> list[Entry]:
    """List the entries of all caches or of one, without files of other programs."""
    backends = set(entry_points(group="torch_dynamo_backends").names)
    found = []
    for name, folder in folders().items():
        if cache not in ("", name):
            continue
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            pattern = NATIVE if name == "native" else GRAPHS
            if pattern.fullmatch(path.name) or (name == "graphs" and path.name in backends):
                found.append(_entry(name, path))
    return found


def clean(found: list[Entry]) -> int:
    """Delete entries and return the number of freed bytes.

    Wait for native builds in progress, which write to the entries. Raise DeeplinkError when an
    entry
    cannot be deleted.
    """
    with native.no_builds():
        for entry in found:
            _delete(entry.path)
    return sum(entry.size for entry in found)


def _delete(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise DeeplinkError(
            _("{path} cannot be deleted: {strerror}.").format(
                path=path, strerror=error.strerror or error
            ),
            _("end the programs that use it, and check who owns it."),
        ) from None


def _entry(cache: str, path: Path) -> Entry:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Entry(cache, path, sum(file.stat().st_size for file in files), len(files))
