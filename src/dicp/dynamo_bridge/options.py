# SPDX-License-Identifier: Apache-2.0
"""The options of `torch.compile(…, options={…})`, and their defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.i18n import _


@dataclass(frozen=True)
class Options:
    """The options for compiling one model."""

    verify: bool = False  # compare each partition with eager, in each call
    freeze: bool = True  # in inference: weights are constants of the compiled graph
    rewrite: bool = True  # fuse by the pattern library
    merge: bool = True  # join linears that share an input
    cache: bool = True  # keep compiled graphs on disk
    measure: bool = True  # keep a small graph eager where compiling it would be slower
    own_results: bool = True  # on CUDA: results that the next call does not overwrite


# torch.compile's `mode` as options of dicp; modes of inductor that are missing here have no effect.
MODES: dict[str, Mapping[str, Any]] = {"default": {}, "reduce-overhead": {"own_results": False}}


def of_mode(mode: str | None) -> Mapping[str, Any]:
    """Return the options of a mode."""
    if mode not in (None, *MODES):
        raise SettingError(
            _("no mode {mode!r} for this backend; there are: {names}.").format(
                mode=mode, names=", ".join(MODES)
            ),
            _("leave it out, or use the backend inductor, whose modes they are."),
        )
    return MODES[mode or "default"]


def resolve(*given: Mapping[str, Any]) -> Options:
    """Merge options from the settings and from each mapping; a later one overrides."""
    values: dict[str, Any] = {
        "verify": settings.DICP_VERIFY.get(),
        "cache": settings.DICP_CACHE.get(),
        "measure": settings.DICP_MEASURE.get(),
    }
    known = [field.name for field in fields(Options)]
    for mapping in given:
        for name, value in mapping.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                raise SettingError(
                    _("no option {name!r} for this backend; there are: {names}.").format(
                        name=name, names=", ".join(known)
                    ),
                    _("did you mean {close!r}?").format(close=close[0]) if close else "",
                )
            values[name] = value
    return Options(**values)
