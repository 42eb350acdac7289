# SPDX-License-Identifier: Apache-2.0
"""The options of a tool: arguments, else the environment, else the settings file, else defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.settings import file
from deeplink.settings.file import File
from deeplink.settings.groups import KEYS, ONLY_IN_FILE
from op_tools.core import spelling
from op_tools.core.call import Level
from op_tools.core.filters import Selection, Steps

# The section of each tool in the settings file.
SECTIONS = {
    "CAPTURE": "capture",
    "AUTOCOMPARE": "autocompare",
    "TIME_MEASURE": "time_measure",
    "FALLBACK": "fallback",
    "DTYPE_CAST": "dtype_cast",
    "OBSERVE": "observe",
    "OVERFLOW_CHECK": "overflow_check",
    "GUARD": "guard",
}


@dataclass(frozen=True)
class Options:
    """What a tool was asked to do; `more` holds what only that tool knows."""

    ops: tuple[str, ...] = (".*",)
    disable: tuple[str, ...] = ()
    level: Level = "api"
    devices: tuple[str, ...] = ()
    select: Selection = field(default_factory=Selection)
    more: dict[str, Any] = field(default_factory=dict)


def options_for(
    key: str,
    *,
    ops: Sequence[str] | str | None = None,
    disable: Sequence[str] | str | None = None,
    level: Level | None = None,
    select: Selection | None = None,
    devices: Sequence[str] | None = None,
    config: str | None = None,
    more: dict[str, Any] | None = None,
) -> Options:
    """The options in force for a tool now; SettingError for one that is not allowed.

    `config` names a file that is read instead of the settings file.
    """
    given = _Given(SECTIONS[key], file.read(Path(config)) if config else None)
    own, disabled = settings.op_lists(key)
    chosen = _first(_words(ops), own.get(source=given.source))
    left_out = _first(_words(disable), disabled.get(source=given.source))
    asked = _first(level, given.value(settings.OP_TOOLS_LEVEL), "")
    if asked not in ("module", "function"):  # their names are not torch's
        spelling.check(own.name, chosen)
        spelling.check(disabled.name, left_out)
        if asked == "aten":
            chosen = spelling.kernels(own.name, chosen)
    return Options(
        ops=chosen,
        disable=left_out,
        level=asked or spelling.level_of(key, chosen),
        devices=_first(_words(devices), given.value(settings.OP_TOOLS_DEVICES), ()),
        select=select if select is not None else _selection(given, key),
        more={**given.own_options(), **(more or {})},
    )


@dataclass(frozen=True)
class _Given:
    """What the environment and a file give for a tool; `source` None: the settings file."""

    section: str
    source: File | None

    def value(self, setting: settings.Setting[Any]) -> Any:
        """The value that is given; None where none is."""
        if not setting.is_set(self.section, self.source):
            return None
        return setting.get(self.section, self.source)

    def own_options(self) -> dict[str, Any]:
        """Options of this tool alone, by their keys: those without a setting, and those of the
        file that is read instead of the settings file.
        """
        start = f"{self.section}."
        values = (self.source or file.current()).values
        found = {
            key.removeprefix(start): values[key]
            for key in ONLY_IN_FILE
            if key.startswith(start) and key in values
        }
        if self.source is None:  # a setting of the tool is read where it is used
            return found
        for name, key in KEYS.items():
            word = key.removeprefix(start)
            if key not in values or word == key or word in ("ops", "disable", "first"):
                continue
            if word.startswith("tolerance."):
                raise SettingError(
                    f"{self.source.path}: {key} is not read from the file of config=.",
                    "put it into deeplink.toml, or into the file of DEEPLINK_CONFIG.",
                )
            found[word] = getattr(settings, name).get(source=self.source)
        return found


def _selection(given: _Given, key: str) -> Selection:
    first = given.value(settings.OP_TOOLS_FIRST)
    if key == "CAPTURE" and settings.OP_TOOLS_FIRST.origin() != "environment":
        first = _first(given.value(settings.OP_CAPTURE_FIRST), first, 0)
    return Selection(
        steps=Steps.parse(_first(given.value(settings.OP_TOOLS_STEPS), "")),
        ranks=_first(given.value(settings.OP_TOOLS_RANKS), ()),
        modules=_first(given.value(settings.OP_TOOLS_MODULES), ()),
        sites=_first(given.value(settings.OP_TOOLS_SITES), ()),
        first=_first(first, 0),
        every=_first(given.value(settings.OP_TOOLS_EVERY), 1),
    )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _words(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        given = settings.split_list(given)
    return tuple(given)
