# SPDX-License-Identifier: Apache-2.0
"""The program's lines with calls, copied into the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

AROUND = 3  # lines before and after
MOST = 2000  # places
LOOKED_AT = 20_000  # files, in search of one by its name
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", "build"}


def excerpts(sites: Sequence[str], root: Path) -> dict[str, dict[str, object]]:
    """By place: the file, the number of the first line, and the lines."""
    wanted = {name for site in sites if (name := site.rpartition(":")[0]) and os.sep not in name}
    found_names = _by_name(wanted, root)
    texts: dict[str, list[str] | None] = {}
    found: dict[str, dict[str, object]] = {}
    for site in sites[:MOST]:
        file, _, number = site.rpartition(":")
        if not number.isdigit():
            continue
        place = file if os.path.isabs(file) else found_names.get(file, "")
        if place not in texts:
            texts[place] = _read(place)
        lines = texts[place]
        at = int(number)
        if lines and at <= len(lines):
            first = max(1, at - AROUND)
            found[site] = {"file": place, "first": first, "lines": lines[first - 1 : at + AROUND]}
    return found


def _read(place: str) -> list[str] | None:
    try:
        return Path(place).read_text("utf-8").splitlines() if place else None
    except (OSError, UnicodeDecodeError):
        return None


def _by_name(names: set[str], root: Path) -> dict[str, str]:
    """Files below a folder by name; the first of each name."""
    found: dict[str, str] = {}
    seen = 0
    if not names:
        return found
    for folder, inner, here in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in SKIPPED and name[0] != ".")
        for name in here:
            if name in names:
                found.setdefault(name, str((Path(folder) / name).resolve()))
        seen += len(here)
        if len(found) == len(names) or seen > LOOKED_AT:
            break
    return found
