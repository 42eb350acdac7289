# SPDX-License-Identifier: Apache-2.0
"""What went wrong inside the tools, counted, and calls that they cannot look into."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch._C import _functorch

_lock = threading.Lock()
_problems: dict[tuple[str, str, str], Problem] = {}
_unfit: Counter[str] = Counter()


@dataclass
class Problem:
    """One kind of error inside a tool: how often, and how it came about the first time."""

    tool: str
    op: str
    message: str
    trace: str
    count: int = 0
    reported: int = 0  # of them


def add(tool: str, op: str, error: BaseException) -> None:
    """Counts an error that was caught; the program that the tool watches goes on."""
    message = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    key = (tool, op, message)
    with _lock:
        if key not in _problems:
            trace = "".join(traceback.format_exception(error))
            _problems[key] = Problem(tool, op, message, trace)
        _problems[key].count += 1


def problems(tool: str | None = None) -> list[Problem]:
    """Errors so far, the most frequent first; of one tool, or of all."""
    with _lock:
        found = [p for p in _problems.values() if tool is None or p.tool in (tool, "op_tools")]
    return sorted(found, key=lambda problem: -problem.count)


def report(tool: str) -> list[tuple[Problem, int]]:
    """A tool's errors that were not reported yet, and how often each came; the most frequent first.
    From then on they count as reported.
    """
    found = problems(tool)
    with _lock:
        fresh = [(p, p.count - p.reported) for p in found if p.count > p.reported]
        for problem, _ in fresh:
            problem.reported = problem.count
    return sorted(fresh, key=lambda pair: -pair[1])


def skipped() -> dict[str, int]:
    """Calls that no tool can look into, by reason."""
    with _lock:
        return dict(_unfit)


def clear() -> None:
    """Forget everything; for a new run in the same process."""
    with _lock:
        _problems.clear()
        _unfit.clear()


def reason(strange: Any) -> str:
    """Why no tool looks into a call: a tensor of a kind of its own, or a transform of torch's."""
    if _functorch.peek_interpreter_stack() is not None:
        return "inside torch.func (vmap, grad, …)"
    return f"tensor subclass {type(strange).__name__}"


def refuse(reason: str) -> bool:
    """Counts a call that is left alone, by the reason; False, for `return refuse(…)`."""
    with _lock:
        _unfit[reason] += 1
    return False
