# SPDX-License-Identifier: Apache-2.0
"""The options of a tool: arguments, else the environment, else the settings file, else defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

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
    section, source = key.lower(), file.read(Path(config)) if config else None
    listed, disabled = settings.op_lists(key)
    names = _words(ops, listed.get(source=source))
    excluded = _words(disable, disabled.get(source=source))
    if level is None and settings.OP_TOOLS_LEVEL.is_set(section, source):
        level = cast("Level", settings.OP_TOOLS_LEVEL.get(section, source))
    if level not in ("module", "function"):  # the names of these levels are not those of torch
        spelling.check(listed.name, names)
        spelling.check(disabled.name, excluded)
        if level == "aten":
            names = spelling.kernels(listed.name, names)
    return Options(
        ops=names,
        disable=excluded,
        level=level or spelling.level_of(key, names),
        devices=_words(devices, settings.OP_TOOLS_DEVICES.get(section, source)),
        select=select if select is not None else _selection(section, source),
        more={**_options_in_file(section, source), **(more or {})},
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


def _options_in_file(section: str, source: File | None) -> dict[str, Any]:
    """The options that only one tool has, by their keys: those without a setting, and those of the
    file of `config`.
    """
    start = f"{section}."
    values = (source or file.current()).values
    options = {
        key.removeprefix(start): values[key]
        for key in ONLY_IN_FILE
        if key.startswith(start) and key in values
    }
    if source is None:  # a setting of the tool is read where it is used
        return options
    for name, key in KEYS.items():
        word = key.removeprefix(start)
        if key not in values or word == key or word in ("ops", "disable", "first"):
            continue
        if word.startswith("tolerance."):
            raise SettingError(
                _("{path}: {key} is not read from the file of config=.").format(
                    path=source.path, key=key
                ),
                _("put it into deeplink.toml, or into the file of DEEPLINK_CONFIG."),
            )
        options[word] = getattr(settings, name).get(source=source)
    return options


def _selection(section: str, source: File | None) -> Selection:
    def value(setting: settings.Setting[Any]) -> Any:
        return setting.get(section, source)

    first = settings.OP_TOOLS_FIRST
    own = settings.OP_CAPTURE_FIRST
    if section == "capture" and first.origin() != "environment" and own.is_set(section, source):
        first = own
    return Selection(
        steps=Steps.parse(value(settings.OP_TOOLS_STEPS)),
        ranks=value(settings.OP_TOOLS_RANKS),
        modules=value(settings.OP_TOOLS_MODULES),
        sites=value(settings.OP_TOOLS_SITES),
        first=value(first),
        every=value(settings.OP_TOOLS_EVERY),
    )


def _words(value: Sequence[str] | str | None, default: Sequence[str]) -> tuple[str, ...]:
    value = default if value is None else value
    return tuple(settings.split_list(value) if isinstance(value, str) else value)
