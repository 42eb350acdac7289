# SPDX-License-Identifier: Apache-2.0
"""The settings file: deeplink.toml, or [tool.deeplink] of pyproject.toml, in the working directory.

DEEPLINK_CONFIG names another file. The file is located and read once, by the first setting.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeplink.errors import SettingError, nearest
from deeplink.i18n import _
from deeplink.settings.groups import KEYS, ONLY_IN_FILE, SHARED, TOOL_SECTIONS

NAME = "deeplink.toml"
VARIABLES = ("DEEPLINK_CONFIG", "OP_TOOLS_CONFIG")  # the second is the older name
_ALIASES = {"all": "tools"}  # older names of sections
_KNOWN = frozenset(
    [*KEYS.values(), *ONLY_IN_FILE, *(f"{tool}.{key}" for tool in TOOL_SECTIONS for key in SHARED)]
)
_SECTIONS = sorted({key.split(".")[0] for key in _KNOWN if "." in key})


@dataclass(frozen=True)
class File:
    """The values of a settings file by their dotted keys; empty where there is no file."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path, table: str = "") -> File:
    """Read a file, or its table `table`; raise SettingError for what is not allowed."""
    import tomllib  # imported on demand: most processes have no settings file

    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(
            _("{path} cannot be read: {strerror}.").format(
                path=path, strerror=error.strerror or error
            ),
            _("DEEPLINK_CONFIG (--config) names a TOML file such as {name}.").format(name=NAME),
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(
            _("{path} is not TOML: {error}.").format(path=path, error=error)
        ) from None
    for part in filter(None, table.split(".")):
        data = data.get(part, {})
    values = {}
    for key, value in _flat(data, path):
        _check(key, path)
        values[key] = value
    return File(str(path), values)


def _flat(data: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        section = _ALIASES.get(name, name)
        if isinstance(value, dict):
            if section not in _SECTIONS:
                raise SettingError(
                    _("{path}: no section [{name}].").format(path=path, name=name),
                    nearest(name, _SECTIONS),
                )
            yield from _leaves(section, value)
        else:
            yield section, value


def _leaves(prefix: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}.{name}"
        if isinstance(value, dict) and key not in _KNOWN:  # a table of types is a value
            yield from _leaves(key, value)
        else:
            yield key, value


def _check(key: str, path: Path) -> None:
    if key not in _KNOWN:
        section = key.rpartition(".")[0]
        near = [known for known in sorted(_KNOWN) if known.rpartition(".")[0] == section]
        raise SettingError(
            _("{path}: no key {key!r}.").format(path=path, key=key),
            nearest(key, near or sorted(_KNOWN)),
        )


def current() -> File:
    """Return the file in force; raise SettingError if it is unreadable or has an unknown key."""
    asked = _requested_path()
    if _state.file is None or _state.asked != asked:
        found = _find(asked)  # an error is not cached: the next call reads the file again
        _state.asked, _state.file = asked, found
    return _state.file


def _requested_path() -> str:
    return next((text for name in VARIABLES if (text := os.environ.get(name, "").strip())), "")


def reload_file() -> None:
    """Locate and read the file again when the next setting is read."""
    _state.file = _state.folder = None


@contextmanager
def ignored() -> Iterator[None]:
    """Ignore the settings file inside the block."""
    before = _state.file, _state.asked
    _state.asked, _state.file = _requested_path(), File()
    try:
        yield
    finally:
        _state.file, _state.asked = before


@dataclass
class _State:
    asked: str = ""
    file: File | None = None
    folder: Path | None = None  # the working directory when the first setting was read


_state = _State()


def _find(asked: str) -> File:
    if asked:
        return read(Path(asked).expanduser())
    if _state.folder is None:
        try:
            _state.folder = Path.cwd()
        except FileNotFoundError:  # the working directory was removed
            return File()
    own, project = _state.folder / NAME, _state.folder / "pyproject.toml"
    if own.is_file():
        return read(own)
    if project.is_file() and b"deeplink" in project.read_bytes():  # most have no such table
        return read(project, "tool.deeplink")
    return File()


def as_text(value: Any) -> str:
    """Convert a value of the file to the text of an environment variable."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    if isinstance(value, dict):
        return ",".join(f"{name}->{as_text(item)}" for name, item in value.items())
    return str(value)
