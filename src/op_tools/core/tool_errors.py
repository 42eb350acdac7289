# SPDX-License-Identifier: Apache-2.0
"""Counts of errors inside the tools, and of calls that no tool can observe."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch._C import _functorch

from deeplink.i18n import _

_lock = threading.Lock()
_problems: dict[tuple[str, str, str], Problem] = {}
_unfit: Counter[str] = Counter()


@dataclass
class Problem:
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
            _problems[key] = Problem(tool, op, message, trace)
        _problems[key].count += 1


def problems(tool: str | None = None) -> list[Problem]:
    """The errors so far, of one tool or of all, the most frequent first."""
    with _lock:
        selected = [p for p in _problems.values() if tool is None or p.tool in (tool, "op_tools")]
    return sorted(selected, key=lambda problem: -problem.count)


def report(tool: str) -> list[tuple[Problem, int]]:
    """The errors of a tool that were not reported, with their counts, the most frequent first; they
    are marked as reported.
    """
    so_far = problems(tool)
    with _lock:
        fresh = [(p, p.count - p.reported) for p in so_far if p.count > p.reported]
        for problem, _ in fresh:
            problem.reported = problem.count
    return sorted(fresh, key=lambda pair: -pair[1])


def skipped() -> dict[str, int]:
    """Counts of the calls that no tool can observe, by reason."""
    with _lock:
        return dict(_unfit)


def clear() -> None:
    """Reset all counts, for a new run in the process."""
    with _lock:
        _problems.clear()
        _unfit.clear()


def reason(strange: Any) -> str:
    """The reason why no tool observes a call: a subclass of Tensor, or a transform of torch."""
    if _functorch.peek_interpreter_stack() is not None:
        return _("inside torch.func (vmap, grad, …)")
    return _("tensor subclass {name}").format(name=type(strange).__name__)


def refuse(reason: str) -> bool:
    """Count a call that is left alone, by the reason. Returns False, for `return refuse(…)`."""
    with _lock:
        _unfit[reason] += 1
    return False
