# SPDX-License-Identifier: Apache-2.0
"""Starts the tools that OP_TOOLS_RUN names, without a change of the program."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Callable

import op_tools
from deeplink import settings
from deeplink.errors import SettingError, nearest
from deeplink.i18n import _
from deeplink.run import run_folder
from op_tools.core import engine
from op_tools.core.tool import Tool

# Tools by their words in `deeplink run`, the innermost first: those that change a call (the CPU
# computes in the type of the cast), then the clock, which must not time the other tools.
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
# Also the tools with a command of their own.
STARTED = {
    "bisect": "OpReroute",
    **CLASSES,
    "one-iter": "OneIteration",
    "why-nan": "WhyNan",
    "recorder": "FlightRecorder",
}
_Started = Tool | op_tools.OneIteration | op_tools.FlightRecorder
_running: list[_Started] = []
os.register_at_fork(after_in_child=_running.clear)  # the tools are stopped in a child


def start() -> Callable[[], None]:
    """Start the tools once in a process, until its end; returns a function that stops them."""
    if not _running:
        _running.extend(tool.start() for tool in _requested())
        atexit.register(stop, quiet=True)
    return stop


def stop(quiet: bool = False) -> None:
    """Stop the tools, the outermost first. `quiet`: a tool that saw no call does not report."""
    findings: Counter[str] = Counter()
    started = bool(_running)
    while _running:
        tool = _running.pop()
        findings.update(_findings(tool))
        if not isinstance(tool, Tool):
            tool.stop(quiet)
            continue
        if quiet and tool._active is not None and not tool.started.applied:
            engine.stop(tool)
            tool._active = None
        tool.stop()
    if started:
        run_folder.write_findings(settings.OP_TOOLS_RESULTS.get(), dict(+findings))


def _findings(tool: _Started) -> dict[str, int]:
    """The number of a tool's findings, by the words of `deeplink run --fail-on`."""
    if isinstance(tool, op_tools.OpAutoCompare):
        return {"wrong": len(tool.failures)}
    if isinstance(tool, op_tools.Guard):
        return {"wrong": tool.confirmed}
    if isinstance(tool, op_tools.OpOverflowCheck):
        return {"nan": len(tool.alarms)}
    return {}


def _requested() -> list[_Started]:
    words = settings.OP_TOOLS_RUN.get()
    for word in words:
        if word not in STARTED:
            raise SettingError(
                _("OP_TOOLS_RUN: no tool {word!r}.").format(word=word), nearest(word, STARTED)
            )
    return [getattr(op_tools, name)() for word, name in STARTED.items() if word in words]
