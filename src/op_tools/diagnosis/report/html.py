# SPDX-License-Identifier: Apache-2.0
"""A page's content as one HTML file: binary columns, the script and the style."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from deeplink import __version__, settings
from deeplink.console import console
from deeplink.errors import DeeplinkError
from deeplink.i18n import _, in_chinese, language
from op_tools.diagnosis.report import source_lines, summary
from op_tools.diagnosis.report.model import STATES, Content, Row

Array = np.ndarray[Any, np.dtype[Any]]

# Texts of a row are indices of a list of texts.
TEXTS: tuple[str, ...] = ("op", "direction", "module", "site", "dtype", "shape", "part", "note")
NUMBERS: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "step": ("i4", lambda row: row.step),
    "rank": ("i2", lambda row: row.rank),
    "run": ("u1", lambda row: row.run),
    "state": ("u1", lambda row: STATES.index(row.state)),
    "ms": ("f4", lambda row: row.ms),
    "error": ("f4", lambda row: min(row.error, 1e30)),
    "low": ("f4", lambda row: row.low),
    "high": ("f4", lambda row: row.high),
    "norm": ("f4", lambda row: row.norm),
    "bytes": ("f4", lambda row: row.bytes),
    "start": ("f8", lambda row: row.start),
    "took": ("f4", lambda row: row.took),
}
SCRIPTS = ("data.js", "words.js", "charts.js", "modules.js", "page.js")


def write(content: Content, path: Path, root: Path) -> int:
    """Write the page atomically, and return its size. Source files are searched below `root`."""
    text = render(content, root).encode()
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(text)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise DeeplinkError(
            _("{path} cannot be written: {strerror}.").format(
                path=path, strerror=error.strerror or error
            ),
            _("what the run wrote is still there; say `deeplink report RUN -o FILE` elsewhere."),
        ) from None
    return len(text)


def offer(content: Content, path: Path) -> None:
    """Write the page and print its path; a full disk loses the page only."""
    try:
        write(content, path, Path())
    except DeeplinkError as error:
        console(stderr=True).print(str(error), style="red", soft_wrap=True)
        return
    console().print(_("report: {path}").format(path=path), soft_wrap=True)


def render(content: Content, root: Path) -> str:
    """The page as text."""
    head, blob = packed(content)
    head["code"] = source_lines.excerpts(
        sorted({row.site for row in content.rows if row.site}), root
    )
    head |= summary.of(content)
    head["zh"] = _chinese(head)
    folder = files("op_tools.diagnosis.report")
    page = folder.joinpath("page.html").read_text("utf-8")
    parts = {
        "TITLE": escape(content.title),
        "LANGUAGE": _language(),
        "STYLE": folder.joinpath("style.css").read_text("utf-8"),
        "HEAD": json.dumps(_finite(head), separators=(",", ":")).replace("</", "<\\/"),
        "BLOB": base64.b64encode(zlib.compress(blob, 6)).decode(),
        "SCRIPT": "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS),
    }
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    return page


def _language() -> str:
    """The language that DEEPLINK_LANG names; "" where the browser of a reader decides."""
    return language() if settings.DEEPLINK_LANG.get() != "auto" else ""


def _chinese(head: dict[str, Any]) -> dict[str, str]:
    """The Chinese texts of sentences that the tools wrote, by the English ones."""
    texts = [table["title"] for table in head["tables"]]
    for finding in head["findings"]:
        texts += [finding["title"], finding["where"], *finding["lines"]]
    return {text: chinese for text in texts if (chinese := in_chinese(text)) != text}


def packed(content: Content) -> tuple[dict[str, Any], bytes]:
    """The data of the script: a description in JSON, and the bytes of all columns."""
    texts: dict[str, list[str]] = {}
    columns: dict[str, Array] = {}
    for name in TEXTS:
        texts[name], columns[name] = _coded([getattr(row, name) for row in content.rows])
    for name, (kind, of) in NUMBERS.items():
        values = [math.nan if (value := of(row)) is None else value for row in content.rows]
        columns[name] = _column(values, kind)
    modules = sorted(content.modules, key=lambda each: (each[1], -each[2]))
    texts["module_name"], columns["module_name"] = _coded([name for name, _, _ in modules])
    columns["module_start"] = _column([start for _, start, _ in modules], "f8")
    columns["module_took"] = _column([took for _, _, took in modules], "f4")
    columns["module_depth"] = _column(_depths(modules), "u1")
    layout, parts, at = [], [], 0
    for name, column in columns.items():
        data = column.tobytes()
        layout.append({"name": name, "type": column.dtype.str[1:], "at": at, "count": len(column)})
        pad = -len(data) % 8
        parts.append(data + bytes(pad))
        at += len(data) + pad
    head = {
        "version": __version__,
        "title": content.title,
        "devices": content.devices,
        "about": content.about,
        "runs": content.runs,
        "made": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "clock": content.clock,
        "unit": content.unit,
        "states": STATES,
        "texts": texts,
        "columns": layout,
        "cells": [asdict(cell) for cell in content.cells],
        "groups": [asdict(group) for group in content.groups],
        "tables": [asdict(table) for table in content.tables],
        "sources": content.sources,
        "problems": content.problems,
        "notes": content.notes,
    }
    return head, b"".join(parts)


def _coded(values: Sequence[str]) -> tuple[list[str], Array]:
    known: dict[str, int] = {}
    codes = [known.setdefault(value, len(known)) for value in values]
    return list(known), _column(codes, "u4")


def _column(values: Sequence[float], kind: str) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(f"<{kind}")


def _depths(modules: Sequence[tuple[str, float, float]]) -> list[int]:
    """The nesting depth of each slice; slices are sorted by start, the longer first."""
    ends: list[float] = []
    found = []
    for _kind, start, took in modules:
        while ends and ends[-1] <= start:
            ends.pop()
        found.append(min(len(ends), 255))
        ends.append(start + took)
    return found


def _finite(value: Any) -> Any:
    """A number for JSON, with nan and inf as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
