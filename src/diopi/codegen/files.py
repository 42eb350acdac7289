# SPDX-License-Identifier: Apache-2.0
"""The list of generated files, and which of them are out of date."""

from __future__ import annotations

from pathlib import Path

from diopi import catalogue
from diopi.codegen import header, pages, protocol, shapes

HEADER = catalogue.FOLDER / "include" / "diopi.h"
SHAPES = HEADER.with_name("diopi_shapes.h")
PROTOCOL = catalogue.FOLDER / "protocol.py"
PAGES = catalogue.FOLDER.parents[1] / "docs" / "diopi"


def wanted() -> dict[Path, str]:
    """Return every generated file with its expected text."""
    found = {HEADER: header.render(), SHAPES: shapes.render(), PROTOCOL: protocol.render()}
    if PAGES.parent.is_dir():  # an installed package has no docs
        found |= {PAGES / name: text for name, text in pages.render().items()}
    return found


def stale() -> list[Path]:
    """Return the files that differ from the registry, and those that it does not generate."""
    texts = wanted()
    differing = [path for path, text in texts.items() if _text(path) != text]
    return differing + [path for path in PAGES.glob("*.md") if _is_obsolete_page(path, texts)]


def _is_obsolete_page(path: Path, texts: dict[Path, str]) -> bool:
    """Whether a generated page belongs to no family; hand-written pages in the folder
    are ignored.
    """
    return path not in texts and (_text(path) or "").startswith(pages.NOTE)


def write() -> list[Path]:
    """Bring every file up to date; return those that changed."""
    texts, changed = wanted(), stale()
    for path in changed:
        if path in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path], "utf-8")
        else:
            path.unlink()
    return changed


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None
