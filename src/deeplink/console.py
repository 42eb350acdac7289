# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal, in one style for every report."""

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deeplink import settings
from deeplink.i18n import translated

# Columns of names, which a reader copies: never broken over two lines.
NO_WRAP = ("vendor", "name", "line", "check", "status", "time", "from")
# Columns of dotted module paths, whose last names identify the module: on one line each.
PATHS = ("module", "layer")
STYLES = {
    "ok": "green",
    "available": "green",
    "skipped": "dim",
    "unavailable": "yellow",
    "FAILED": "bold red",
    "broken": "bold red",
}


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False
) -> Table:
    """Build a table of plain texts; a cell that holds a known state is coloured.

    With `numbers`, each column but the first holds numbers, which are never broken over lines.
    """
    rows = [list(row) for row in rows]
    made = Table(
        title=translated(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE,
        pad_edge=False,
    )
    texts = [[translated(cell) for cell in row] for row in rows]
    styles = [[STYLES.get(cell, "") for cell in row] for row in rows]
    headers = [translated(column) for column in columns]
    longest = [max(map(cell_len, cells), default=0) for cells in zip(*texts, strict=True)]
    unbroken = [
        # one column of long paths would leave no room for the others
        (name in NO_WRAP and (not rows or longest[at] <= console().width // 2))
        or (numbers and at > 0)
        for at, name in enumerate(columns)
    ]
    for at, column in enumerate(columns):
        width = None
        if column in PATHS:
            width = _path_width([headers, *texts], unbroken, at)
            for row in texts:
                row[at] = _path_end(row[at], width)
        made.add_column(
            headers[at],
            justify="right" if numbers and at > 0 else "left",
            no_wrap=unbroken[at],
            overflow="fold",  # only the start of a path is cut off
            width=width,
            min_width=max(map(len, column.split()), default=0),  # words of a header are whole
        )
    for row, looks in zip(texts, styles, strict=True):
        made.add_row(*(Text(cell, style=look) for cell, look in zip(row, looks, strict=True)))
    return made


SEPARATOR = 3  # characters around each column
NARROWEST = 8  # characters of a path that are shown in any case


def _path_width(rows: Sequence[Sequence[str]], unbroken: Sequence[bool], at: int) -> int:
    """Return the width that the other columns, broken over lines, leave for a column of paths."""
    width = console().width
    lengths = [max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    others = [
        length if whole else max(min(length, width // 12), *map(cell_len, rows[0][place].split()))
        for place, (length, whole) in enumerate(zip(lengths, unbroken, strict=True))
        if place != at
    ]
    left = width - sum(others) - SEPARATOR * len(lengths)
    return min(lengths[at], max(NARROWEST, left))


def _path_end(path: str, width: int) -> str:
    """Return the last names of a dotted path that fit, after an ellipsis:
    `…layers.15.mlp.up_proj`.
    """
    if len(path) <= width:
        return path
    mark = ".." if console().options.ascii_only else "…"
    start = len(path) - width + len(mark)
    end = path[start:]
    if path[start - 1] != "." and "." in end:
        end = end[end.index(".") + 1 :]
    return mark + end


WIDTH = 100  # of a report in a file or a pipe, which has no width


class Output(io.TextIOBase):
    """A stream to standard output or standard error whose failures must not end the program.

    Characters that the stream's encoding lacks are escaped. A stream that is closed, broken or
    absent drops the text.
    """

    def __init__(self, stderr: bool = False) -> None:
        self._stderr = stderr

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._stderr else sys.stdout

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return bool(self._stream.isatty())
        except (AttributeError, OSError, ValueError):
            return False

    def fileno(self) -> int:
        found: int = self._stream.fileno()
        return found

    def write(self, text: str) -> int:
        text = translated(text)
        stream = self._stream
        try:
            if stream in (sys.__stdout__, sys.__stderr__):
                self._write_at_once(stream, text)
            else:
                stream.write(self._encodable(text))
                stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # absent, closed or broken: the text has no reader
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._stream.flush()

    def _write_at_once(self, stream: Any, text: str) -> None:
        """Write without the stream's buffer,
        because text left in it would fail the program's exit.
        """
        stream.flush()
        left = memoryview(self._encodable(text).encode(self.encoding, "replace"))
        while left:
            left = left[os.write(stream.fileno(), left) :]

    def _encodable(self, text: str) -> str:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text


class Terminal(Console):
    """A console that prints messages in the reader's language."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(translated(o) if isinstance(o, str) else o for o in objects), **how)


def console(stderr: bool = False) -> Console:
    """Create the console of reports; plain text when it is no terminal, without markup guessing."""
    file = cast("IO[str]", Output(stderr))
    made = Terminal(file=file, stderr=stderr, highlight=False, markup=False, soft_wrap=False)
    if not made.is_terminal and not settings.columns():
        made.width = WIDTH
    return made
