# SPDX-License-Identifier: Apache-2.0
"""Debugging aids for the operators of the device: forced fallback, dump of calls, comparison with
the CPU. Environment variables switch them while the program runs. Switched off, they cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deeplink import settings
from deeplink.errors import DeeplinkError
from torch_dipu import _C, op_patterns, routes
from torch_dipu.debug import op_compare, report

log = logging.getLogger("torch_dipu")

FORCED, COMPARED = settings.DIPU_FORCE_FALLBACK_OPS_LIST, settings.DIPU_AUTOCOMPARE_OPS_LIST
DUMPED = settings.DIPU_DUMP_OP_ARGS


@dataclass
class _State:
    """The aids in force."""

    forced: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    level: int = 0
    calls: int = 0


_now = _State()


def register() -> None:
    """Apply the variables now, and whenever the program changes one of them."""
    for setting, apply in ((FORCED, _force), (COMPARED, _compare), (DUMPED, _dump)):
        apply()
        settings.watch(setting, _careful(setting, apply))


def _careful(setting: settings.Setting[Any], apply: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        try:
            apply()
        # raised where the program sets a variable, it would end the program
        except DeeplinkError as error:
            log.error("%s is not applied: %s", setting.name, error)

    return changed


def _force() -> None:
    wanted = op_patterns.matching(FORCED.get())
    _C.set_forced([name for name in _now.forced if name not in wanted], 0)
    for mode in (op_patterns.ALWAYS, op_patterns.WITH_NUMBER):
        _C.set_forced([name for name, found in wanted.items() if found == mode], mode)
    if wanted != _now.forced:
        log.warning("%s", report.forced(wanted))
    _now.forced = wanted


def _compare() -> None:
    _now.compared = op_patterns.matching(COMPARED.get())
    _watch()


def _dump() -> None:
    _now.level = DUMPED.get()
    _watch()


def _watch() -> None:
    everything = _C.operators()
    watched = set(everything) if _now.level else set(_now.compared)
    _C.set_watcher([name for name in everything if name not in watched], None)
    _C.set_watcher(list(watched), _around)


def stop_watching() -> None:
    """Stop dumping and comparing calls."""
    _C.set_watcher(_C.operators(), None)


def _around(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator, and print the dump and the comparison of its call around it."""
    before = _C.exchange_watch_off(True)  # the aids' own operators are not printed
    try:
        _now.calls += 1
        call = op_compare.Call(operator, args, kwargs)
        number = call.has_number
        level = _now.level
        dump = _dump_of(call, number, _now.calls) if level else None
        if dump is not None:
            report.dump_before(dump, level)
        taken = op_compare.snapshot(call) if _wanted(operator, number) else None
        result = call.overload(*args, **kwargs)
        if dump is not None:
            report.dump_after(dump, result, level)
        if taken is not None:
            _judge(taken, result, operator)
        return result
    finally:
        _C.exchange_watch_off(before)


def _dump_of(call: op_compare.Call, number: bool, count: int) -> report.Dump:
    """Build the dump of a call: its names (two for a call with a number), and its function."""
    own = op_patterns.shown(call.operator)
    scalar = op_patterns.shown(call.operator, True) if number else own
    forced = _now.forced.get(call.operator, 0)
    is_forced = forced == op_patterns.ALWAYS or (forced == op_patterns.WITH_NUMBER and number)
    runners = [] if is_forced else routes.bound(call.operator)
    return report.Dump(call, count, own, None if scalar == own else scalar, runners)


def _wanted(operator: str, number: bool) -> bool:
    mode = _now.compared.get(operator, 0)
    return mode == op_patterns.ALWAYS or (mode == op_patterns.WITH_NUMBER and number)


def _judge(taken: op_compare.CallSnapshot, result: Any, operator: str) -> None:
    try:
        rows = op_compare.compare(taken, result)
    except Exception as error:  # a tool must not end the program that it observes
        log.error("autocompare of %s failed: %s: %s", operator, type(error).__name__, error)
        return
    report.autocompare(op_patterns.shown(operator), rows)
