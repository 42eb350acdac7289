# SPDX-License-Identifier: Apache-2.0
"""The options of a tool: arguments, else the environment, else the settings file, else defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.errors import SettingError, nearest
from deeplink.i18n import _
from deeplink.settings import file
from deeplink.settings.file import File
from deeplink.settings.groups import KEYS, ONLY_IN_FILE
from op_tools.core import spelling
from op_tools.core.call import Level
from op_tools.core.filters import Selection, Steps


@dataclass(frozen=True)
class Options:
    """The options of a started tool; `more` holds those that only this tool has."""

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
    """The current options of a tool; SettingError for an option that is not allowed.

    `config` names a file that is read instead of the settings file.
    """
    source = _Source(key.lower(), file.read(Path(config)) if config else None)
    listed, disabled = settings.op_lists(key)
    wanted = _first(_words(ops), listed.get(source=source.file))
    left_out = _first(_words(disable), disabled.get(source=source.file))
    chosen = _first(level, source.value(settings.OP_TOOLS_LEVEL), "")
    if chosen not in ("module", "function"):  # the names of these levels are not those of torch
        spelling.check(listed.name, wanted)
        spelling.check(disabled.name, left_out)
        if chosen == "aten":
            wanted = spelling.kernels(listed.name, wanted)
    return Options(
        ops=wanted,
        disable=left_out,
        level=chosen or spelling.level_of(key, wanted),
        devices=_first(_words(devices), source.value(settings.OP_TOOLS_DEVICES), ()),
        select=select if select is not None else _selection(source, key),
        more={**source.own_options(), **(more or {})},
    )


def own_options(
    tool: str, more: Mapping[str, Any], known: Mapping[str, settings.Setting[Any]]
) -> dict[str, Any]:
    """The values of the options that only one tool has: an argument, else the option's setting.

    SettingError for an unknown option, and for a value that is not allowed.
    """
    for name in more:
        if name not in known:
            raise SettingError(
                _("{tool} has no option {name!r}.").format(tool=tool, name=name),
                nearest(name, known),
            )
    values = {}
    for name, setting in known.items():
        value = more.get(name)
        try:
            values[name] = setting.get() if value is None else setting.parse(str(value))
        except ValueError as error:
            raise SettingError(
                _("{tool}({name}={value!r}): {error}.").format(
                    tool=tool, name=name, value=value, error=error
                ),
                _("allowed: {allowed}.").format(allowed=setting.allowed),
            ) from None
    return values


@dataclass(frozen=True)
class _Source:
    """The values of the environment and of a file for a tool; `file` None: the settings file."""

    section: str  # of the tool in the settings file
    file: File | None

    def value(self, setting: settings.Setting[Any]) -> Any:
        """The value of a setting; None where it is not set."""
        if not setting.is_set(self.section, self.file):
            return None
        return setting.get(self.section, self.file)

    def own_options(self) -> dict[str, Any]:
        """The options that only this tool has, by their keys: those without a setting, and those of
        the file of `config`.
        """
        start = f"{self.section}."
        values = (self.file or file.current()).values
        options = {
            key.removeprefix(start): values[key]
            for key in ONLY_IN_FILE
            if key.startswith(start) and key in values
        }
        if self.file is None:  # a setting of the tool is read where it is used
            return options
        for name, key in KEYS.items():
            word = key.removeprefix(start)
            if key not in values or word == key or word in ("ops", "disable", "first"):
                continue
            if word.startswith("tolerance."):
                raise SettingError(
                    _("{path}: {key} is not read from the file of config=.").format(
                        path=self.file.path, key=key
                    ),
                    _("put it into deeplink.toml, or into the file of DEEPLINK_CONFIG."),
                )
            options[word] = getattr(settings, name).get(source=self.file)
        return options


def _selection(source: _Source, key: str) -> Selection:
    first = source.value(settings.OP_TOOLS_FIRST)
    if key == "CAPTURE" and settings.OP_TOOLS_FIRST.origin() != "environment":
        first = _first(source.value(settings.OP_CAPTURE_FIRST), first, 0)
    return Selection(
        steps=Steps.parse(_first(source.value(settings.OP_TOOLS_STEPS), "")),
        ranks=_first(source.value(settings.OP_TOOLS_RANKS), ()),
        modules=_first(source.value(settings.OP_TOOLS_MODULES), ()),
        sites=_first(source.value(settings.OP_TOOLS_SITES), ()),
        first=_first(first, 0),
        every=_first(source.value(settings.OP_TOOLS_EVERY), 1),
    )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _words(value: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(settings.split_list(value) if isinstance(value, str) else value)
