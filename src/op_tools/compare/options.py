# SPDX-License-Identifier: Apache-2.0
"""The options that only OpAutoCompare has: by its arguments, else by settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.i18n import _
from deeplink.judge import NAMES as STANDARDS
from deeplink.settings.kinds import parse_limit
from op_tools.core import terminal
from op_tools.core.options import Options
from op_tools.tensors import statistics

MODES = ("every", "signature", "sample")
BUDGET = 0.75  # of the step's time, where each copy to the host would wait for the device
SAMPLE = 10  # of the calls of an operator, every so many-th


@dataclass(frozen=True)
class CompareOptions:
    """Which calls are compared, with what, and by which rule."""

    mode: str
    standard: str
    background: bool | None  # None: large calls, and all calls of a device that does not wait
    sample: int
    bitwise: bool  # what is the CPU's bit for bit, in the same type, is right without float64
    recheck: float  # share of calls of a known signature that are compared all the same
    budget: float | None  # share of the step's time; None: no limit
    shown: bool  # tables of each call are printed
    whole: bool  # large calls are judged in all their elements; so are those shown in tables


def read_options(options: Options) -> CompareOptions:
    """The options by arguments, else by settings; SettingError where one is not allowed."""
    known = {"mode", "standard", "background", "sample", "bitwise", "recheck", "whole", "budget"}
    unknown = sorted(set(options.more) - known)
    if unknown:
        raise SettingError(
            _("OpAutoCompare takes no {names}.").format(names=", ".join(unknown)),
            _("it takes {names}.").format(names=", ".join(sorted(known))),
        )

    def option(name: str, setting: settings.Setting[Any] | None, default: Any = None) -> Any:
        value = options.more.get(name)
        return value if value is not None else setting.get() if setting is not None else default

    found = CompareOptions(
        option("mode", settings.OP_AUTOCOMPARE_MODE),
        option("standard", settings.OP_AUTOCOMPARE_STANDARD),
        _background(options.more.get("background")),
        int(option("sample", None, SAMPLE)),
        bool(option("bitwise", None, True)),
        float(option("recheck", None, 0.0)),
        None,
        terminal.verbose(),
        bool(option("whole", None, False)) or terminal.verbose(),
    )
    budget = _budget(options.more.get("budget"))
    if budget is None and found.mode == "every" and not (found.shown or found.whole):
        budget = BUDGET if is_remote() and found.background is None else None
    found = replace(found, budget=None if budget == math.inf else budget)
    if found.sample < 1 or not 0 <= found.recheck <= 1:
        raise SettingError(
            _("OpAutoCompare: sample {sample}, recheck {recheck} are not allowed.").format(
                sample=found.sample, recheck=found.recheck
            ),
            _("sample is a whole number from 1 on, recheck a share from 0 to 1."),
        )
    for what, value, allowed in (
        ("mode", found.mode, MODES),
        ("standard", found.standard, STANDARDS),
    ):
        if value not in allowed:
            raise SettingError(
                _("OpAutoCompare: {what} {value!r} is not allowed.").format(what=what, value=value),
                _("one of {names}.").format(names=", ".join(allowed)),
            )
    return found


def _background(given: Any) -> bool | None:
    if given is None and settings.OP_AUTOCOMPARE_BACKGROUND.is_set():
        given = settings.OP_AUTOCOMPARE_BACKGROUND.get()
    return None if given is None else bool(given)


def _budget(given: Any) -> float | None:
    if given is None:
        return settings.OP_AUTOCOMPARE_BUDGET.get()
    try:
        return parse_limit(str(given))
    except ValueError as error:
        raise SettingError(
            _("OpAutoCompare: budget {given!r}: {error}.").format(given=given, error=error),
            _("a share of the step, as 25% or 0.25, or none."),
        ) from None


def is_remote() -> bool:
    """Whether the host cannot read the memory of this machine's accelerator."""
    device = torch.accelerator.current_accelerator()
    return device is not None and not statistics.kind_is_seen(device.type)
