# SPDX-License-Identifier: Apache-2.0
"""Counts of errors inside the tools, and of calls that no tool can observe."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from dataclasses import dataclass

_lock = threading.Lock()
_problems: dict[tuple[str, str, str], ToolError] = {}
_skipped: Counter[str] = Counter()


@dataclass
class ToolError:
    """One kind of error inside a tool, with the traceback of the first one."""

    tool: str
    op: str
    message: str
    trace: str
    count: int = 0
    reported: int = 0  # of `count`


def add(tool: str, op: str, error: BaseException) -> None:
    """Count an error that was caught; the program goes on."""
    message = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    key = (tool, op, message)
    with _lock:
        if key not in _problems:
            trace = "".join(traceback.format_exception(error))
            _problems[key] = ToolError(tool, op, message, trace)
        _problems[key].count += 1


def problems(tool: str | None = None) -> list[ToolError]:
    """The errors so far, of one tool or of all, the most frequent first."""
    with _lock:
        selected = [p for p in _problems.values() if tool is None or p.tool in (tool, "op_tools")]
    return sorted(selected, key=lambda problem: -problem.count)


def report(tool: str) -> list[tuple[ToolError, int]]:
    """The errors of a tool since the last report, with their counts, the most frequent first."""
    so_far = problems(tool)
    with _lock:
        fresh = [(p, p.count - p.reported) for p in so_far if p.count > p.reported]
        for problem, _ in fresh:
            problem.reported = problem.count
    return sorted(fresh, key=lambda pair: -pair[1])


def skipped() -> dict[str, int]:
    """Counts of the calls that no tool can observe, by reason."""
    with _lock:
        return dict(_skipped)


def clear() -> None:
    """Reset all counts, for a new run in the process."""
    with _lock:
        _problems.clear()
        _skipped.clear()


def skip(reason: str) -> None:
    """Count a call that no tool can observe, by the reason."""
    with _lock:
        _skipped[reason] += 1
