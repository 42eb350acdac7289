# SPDX-License-Identifier: Apache-2.0
"""The settings in force in this process, and unknown variables that resemble a setting."""

import difflib
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from deeplink.errors import SettingError
from deeplink.i18n import _, message
from deeplink.settings import file
from deeplink.settings.groups import INTERNAL
from deeplink.settings.kinds import Setting
from deeplink.settings.rows import DEEPLINK_CONFIG, PREFIXES, table

_FILE = DEEPLINK_CONFIG.name


@dataclass(frozen=True)
class InForce:
    """A setting in force. `problem` is empty unless its value is not allowed."""

    name: str
    value: str
    source: str  # "default", "environment", or the path of the settings file
    default: str
    allowed: str
    doc: str
    problem: str = ""


@dataclass(frozen=True)
class Unknown:
    """A variable that resembles a setting: `meant` is the nearest setting; `hint` is the
    replacement
    of a variable of older documents.
    """

    name: str
    meant: str = ""
    hint: str = ""


# Variables of published documents that no code reads.
_ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "DIPU_DEVICE": _(
            "set DEEPLINK_VENDOR to the vendor's name: it is chosen when a program runs, not "
            "when torch_dipu is built."
        ),
        "DITORCH_DISABLE_MOCK": _(
            "remove it: ditorch is active only where `import ditorch`, DITORCH=1 or "
            "`deeplink run` activates it."
        ),
        "DICP_TOPS_DIPU": _("remove it: a compiled graph runs on the device of its tensors."),
    }
)


def in_force() -> list[InForce]:
    """Return each setting that is not internal, with its value and origin.

    Never raises: a bad value is a problem, and a settings file that cannot be read is a problem of
    DEEPLINK_CONFIG.
    """
    try:
        file.current()
        problem = ""
    except SettingError as error:
        problem = str(error)
    with file.ignored() if problem else nullcontext():
        rows = [_in_force(setting) for setting in table() if setting.name not in INTERNAL]
    return [replace(r, problem=problem) if problem and r.name == _FILE else r for r in rows]


def unknown() -> list[Unknown]:
    """Return the environment variables with a prefix of the project that no code reads."""
    known = [setting.name for setting in table()]
    names = sorted(n for n in os.environ if n.startswith(PREFIXES) and n not in known)
    return [_unknown(name, known) for name in names]


def warning(row: Unknown) -> str:
    """Format the warning about a variable that resembles a setting."""
    meant = _("; did you mean {meant}?").format(meant=row.meant) if row.meant else ""
    hint = _(".\nHint: {text}").format(text=row.hint) if row.hint else ""
    return _("{name} is set, but nothing reads it{meant}{hint}").format(
        name=row.name, meant=meant, hint=hint
    )


def _unknown(name: str, known: list[str]) -> Unknown:
    if name in _ANSWERS:
        return Unknown(name, hint=_ANSWERS[name])
    return Unknown(name, *difflib.get_close_matches(name, known, n=1))


def _in_force(setting: Setting[Any]) -> InForce:
    default = setting.show(setting.default())
    problem = ""
    try:
        value = setting.show(setting.get())
    except SettingError as error:
        value = setting.text()
        problem = str(error)
    row = (
        setting.name,
        value,
        setting.origin(),
        default,
        setting.allowed,
        message(setting.doc),
        problem,
    )
    return InForce(*row)
