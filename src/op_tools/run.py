# SPDX-License-Identifier: Apache-2.0
"""The tools that OP_TOOLS_RUN names, started without a line in the program."""

from __future__ import annotations

import atexit
import difflib
import os
from collections import Counter
from collections.abc import Callable

import op_tools
from deeplink import run_folder, settings
from deeplink.errors import SettingError
from op_tools.core import engine
from op_tools.core.tool import Tool

# By the words of `deeplink run`, from the inside out: what changes a call is nearest to it (the
# CPU computes in the type of the cast), then the clock, which is not to time the other tools.
CLASSES = {
    "fallback": "OpFallback",
    "cast": "OpDtypeCast",
    "time": "OpTimeMeasure",
    "autocompare": "OpAutoCompare",
    "capture": "OpCapture",
    "observe": "OpObserve",
    "overflow": "OpOverflowCheck",
    "guard": "Guard",
}
# and those that have a command of their own
STARTED = {
    "bisect": "OpReroute",
    **CLASSES,
    "one-iter": "OneIteration",
    "why-nan": "WhyNan",
    "recorder": "FlightRecorder",
}
_Started = Tool | op_tools.OneIteration | op_tools.FlightRecorder
_running: list[_Started] = []
os.register_at_fork(after_in_child=_running.clear)  # a child's are none of these


def start() -> Callable[[], None]:
    """Starts them, once in a process; returns what stops them, which the end of it does too."""
    if not _running:
        _running.extend(tool.start() for tool in _asked())
        atexit.register(stop, quiet=True)
    return stop


def stop(quiet: bool = False) -> None:
    """Stops them, from the outside in. `quiet`: one that saw nothing (a launcher's) is silent."""
    found: Counter[str] = Counter()
    started = bool(_running)
    while _running:
        tool = _running.pop()
        found.update(_findings(tool))
        if not isinstance(tool, Tool):
            tool.stop(quiet)
            continue
        if tool._active is not None:
            tool.so_far()  # counts what was seen natively
        if quiet and tool._active is not None and not tool.started.applied:
            engine.stop(tool)
            tool._active = None
        tool.stop()
    if started:
        run_folder.write_findings(settings.OP_TOOLS_RESULTS.get(), dict(+found))


def _findings(tool: _Started) -> dict[str, int]:
    """How many findings a tool has, by the words of `deeplink run --fail-on`."""
    if isinstance(tool, op_tools.OpAutoCompare):
        return {"wrong": len(tool.failures)}
    if isinstance(tool, op_tools.Guard):
        return {"wrong": tool.confirmed}
    if isinstance(tool, op_tools.OpOverflowCheck):
        return {"nan": len(tool.alarms)}
    return {}


def _asked() -> list[_Started]:
    words = settings.OP_TOOLS_RUN.get()
    for word in words:
        if word not in STARTED:
            near = difflib.get_close_matches(word, STARTED, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(STARTED)}."
            raise SettingError(f"OP_TOOLS_RUN: no tool {word!r}.", hint)
    return [getattr(op_tools, name)() for word, name in STARTED.items() if word in words]
