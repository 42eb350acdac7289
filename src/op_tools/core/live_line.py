# SPDX-License-Identifier: Apache-2.0
"""The live line of a terminal: what the tools have seen so far, below the program's own lines.

While the line is shown, a write of the program to stdout or stderr erases it first. It is shown
only where the program's last write ended its line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()
_undo: list[Callable[[], None]] = []
_shown = False
_line_is_over = True  # the program's last write ended its line


def _in_child() -> None:
    """In a forked child: the line is the parent's, and no thread holds the lock."""
    global _lock, _shown
    _lock, _shown = threading.RLock(), False


os.register_at_fork(after_in_child=_in_child)


def show(text: str) -> None:
    """Replace the live line; show nothing while the program's last line is not ended."""
    global _shown
    with _lock, contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        if not sys.stderr.isatty():
            return
        if not _undo:  # where the cursor is, is known from the next write on
            _follow(sys.stdout)
            _follow(sys.stderr)
            return
        if _line_is_over:
            _write(f"\r\x1b[K{text[: _columns() - 1]}")
            _shown = True


def end() -> None:
    """Erase the line, and leave the program's streams as they were."""
    with _lock:
        _erase()
        while _undo:
            _undo.pop()()


def _erase() -> None:
    global _shown
    if _shown:
        _shown = False
        with contextlib.suppress(OSError, ValueError):
            _write("\r\x1b[K")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:  # a stream that only represents a terminal
        return 80


def _write(text: str) -> None:
    """Write to stderr without the replaced `write`, which would erase the line."""
    type(sys.stderr).write(sys.stderr, text)
    sys.stderr.flush()


def _follow(stream: Any) -> None:
    """Let a stream's writes erase the live line; no stream or one of another kind is left alone."""
    attributes = getattr(stream, "__dict__", None)  # None: also of an absent stream
    if attributes is None or "write" in attributes or not stream.isatty():
        return
    write = stream.write

    def followed(text: str) -> Any:
        global _line_is_over
        with _lock:
            _erase()
            if text:
                _line_is_over = text.endswith("\n")
            return write(text)

    stream.write = followed

    def undo() -> None:
        if vars(stream).get("write") is followed:
            del stream.write

    _undo.append(undo)
