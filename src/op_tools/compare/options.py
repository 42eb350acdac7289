# SPDX-License-Identifier: Apache-2.0
"""The options that only OpAutoCompare has: by its arguments, else by settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
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


@dataclass(frozen=True)
class CompareOptions:
    """Which calls are compared, with what, and by which rule."""

    mode: str
    standard: str
    background: bool | None  # None: large calls, and all calls of a device that does not wait
    budget: float | None  # share of the step's time; None: no limit
    sample: int = 10  # of the calls of an operator, every so many-th
    bitwise: bool = True  # a result that is the CPU's bit for bit needs no float64
    recheck: float = 0.0  # share of calls of a known signature that are compared all the same
    whole: bool = False  # large calls are judged in all their elements
    shown: bool = False  # tables of each call are printed, which are of whole calls


def read_options(options: Options) -> CompareOptions:
    """The options by arguments, else by settings; SettingError where one is not allowed."""
    names = {field.name for field in fields(CompareOptions)} - {"shown"}
    unknown = sorted(set(options.more) - names)
    if unknown:
        raise SettingError(
            _("OpAutoCompare takes no {names}.").format(names=", ".join(unknown)),
            _("it takes {names}.").format(names=", ".join(sorted(names))),
        )
    more = {name: value for name, value in options.more.items() if value is not None}
    background = settings.OP_AUTOCOMPARE_BACKGROUND
    own = CompareOptions(
        more.pop("mode", settings.OP_AUTOCOMPARE_MODE.get()),
        more.pop("standard", settings.OP_AUTOCOMPARE_STANDARD.get()),
        more.pop("background", background.get() if background.is_set() else None),
        _budget(more.pop("budget", None)),
        **more,
    )
    own = replace(own, shown=terminal.verbose(), whole=own.whole or terminal.verbose())
    if own.budget is None and own.mode == "every" and own.background is None and not own.whole:
        own = replace(own, budget=BUDGET if is_remote() else None)
    if own.sample < 1 or not 0 <= own.recheck <= 1:
        raise SettingError(
            _("OpAutoCompare: sample {sample}, recheck {recheck} are not allowed.").format(
                sample=own.sample, recheck=own.recheck
            ),
            _("sample is a whole number from 1 on, recheck a share from 0 to 1."),
        )
    for name, value, allowed in (("mode", own.mode, MODES), ("standard", own.standard, STANDARDS)):
        if value not in allowed:
            raise SettingError(
                _("OpAutoCompare: {what} {value!r} is not allowed.").format(what=name, value=value),
                _("one of {names}.").format(names=", ".join(allowed)),
            )
    return own if own.budget != math.inf else replace(own, budget=None)


def _budget(value: Any) -> float | None:
    if value is None:
        return settings.OP_AUTOCOMPARE_BUDGET.get()
    try:
        return parse_limit(str(value))
    except ValueError as error:
        raise SettingError(
            _("OpAutoCompare: budget {given!r}: {error}.").format(given=value, error=error),
            _("a share of the step, as 25% or 0.25, or none."),
        ) from None


def is_remote() -> bool:
    """Whether the host cannot read the memory of this machine's accelerator."""
    device = torch.accelerator.current_accelerator()
    return device is not None and not statistics.kind_is_seen(device.type)
