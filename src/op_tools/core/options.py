"""The options of a tool: from Python, from the environment, from a TOML file, else the default."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.errors import SettingError
from op_tools.core import spelling
from op_tools.core.call import Level
from op_tools.core.filters import Selection, Steps

# The keys of a tool's section in the file, and the setting of each tool that overrides it.
KEYS = tuple("ops disable level devices steps ranks modules sites first every".split())
TOOLS = {
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
    """The options in force for a tool now; SettingError when one of them cannot be."""
    section = _section(TOOLS[key], config)
    own, disabled = settings.op_lists(key)
    chosen = _first(_words(ops), _set(own), section.get("ops"), (".*",))
    left_out = _first(_words(disable), _set(disabled), section.get("disable"), disabled.default())
    asked = _first(level, _set(settings.OP_TOOLS_LEVEL), section.get("level"), "")
    if asked not in ("module", "function"):  # their names are not torch's
        spelling.check(own.name, chosen)
        spelling.check(disabled.name, left_out)
        if asked == "aten":
            chosen = spelling.kernels(own.name, chosen)
    return Options(
        ops=chosen,
        disable=left_out,
        level=asked or spelling.level_of(key, chosen),
        devices=_first(
            _words(devices), _set(settings.OP_TOOLS_DEVICES), section.get("devices"), ()
        ),
        select=select if select is not None else _selection(section, key),
        more={**section.get("more", {}), **(more or {})},
    )


def _selection(section: dict[str, Any], key: str) -> Selection:
    steps = _set(settings.OP_TOOLS_STEPS)
    text = str(_first(steps, section.get("steps"), ""))
    try:
        chosen = Steps.parse(text)
    except ValueError as error:
        raise SettingError(
            f"steps = {text!r}: {error}.", "write numbers and ranges, as 3,10-20,100-."
        ) from None
    first = settings.OP_CAPTURE_FIRST.get() if key == "CAPTURE" else 0
    return Selection(
        steps=chosen,
        ranks=_first(_set(settings.OP_TOOLS_RANKS), section.get("ranks"), ()),
        modules=_first(_set(settings.OP_TOOLS_MODULES), section.get("modules"), ()),
        sites=_first(_set(settings.OP_TOOLS_SITES), section.get("sites"), ()),
        first=_first(_set(settings.OP_TOOLS_FIRST), section.get("first"), first),
        every=_first(_set(settings.OP_TOOLS_EVERY), section.get("every"), 1),
    )


def _set(setting: settings.Setting[Any]) -> Any:
    return setting.get() if setting.is_set() else None


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _words(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        given = settings.split_list(given)
    return tuple(given)


def _section(tool: str, config: str | None) -> dict[str, Any]:
    """A tool's section over the [all] section of the file, checked."""
    path = Path(config) if config else _set(settings.OP_TOOLS_CONFIG)
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read: {error.strerror or error}.",
            "--config (OP_TOOLS_CONFIG) names a TOML file with a section for each tool.",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not TOML: {error}.") from None
    known = ("all", *TOOLS.values())
    for name in data:
        _check(name, known, f"{path}: no section [{name}]")
    section = {**data.get("all", {}), **data.get(tool, {})}
    found: dict[str, Any] = {"more": {}}
    for name, value in section.items():
        if name in KEYS:
            found[name] = tuple(value) if isinstance(value, list) else value
            if name in ("ops", "disable", "devices", "modules", "sites", "ranks"):
                found[name] = _words(value) if isinstance(value, str) else tuple(value)
        else:
            found["more"][name] = value
    return found


def _check(name: str, known: Sequence[str], message: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}."
        raise SettingError(message + ".", hint)
