"""The settings as they stand in this process, and variables that look like one."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from deeplink.errors import SettingError
from deeplink.settings.kinds import Setting
from deeplink.settings.rows import PREFIXES, table


@dataclass(frozen=True)
class InForce:
    """A setting as it stands now. `problem` is empty unless its value is not allowed."""

    name: str
    value: str
    source: str  # "default" or "environment"
    default: str
    allowed: str
    doc: str
    problem: str = ""


@dataclass(frozen=True)
class Unknown:
    """A variable that looks like a setting and is none: `meant` is the nearest setting, `hint` says
    what to do in place of a variable of older documents.
    """

    name: str
    meant: str = ""
    hint: str = ""


# Variables that documents of DIPU and DICP set, and that nothing reads.
_ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "DIPU_DEVICE": "set DEEPLINK_VENDOR to the vendor's name: it is chosen when a program "
        "runs, not when torch_dipu is built.",
        "DICP_TOPS_DIPU": "remove it: a compiled graph runs on the device of its tensors.",
    }
)


def in_force() -> list[InForce]:
    """Each setting's value and where it comes from. Never raises: a bad value is a problem."""
    return [_in_force(setting) for setting in table()]


def unknown() -> list[Unknown]:
    """The variables of the environment that start like ours and that nothing reads."""
    known = [setting.name for setting in table()]
    names = sorted(n for n in os.environ if n.startswith(PREFIXES) and n not in known)
    return [_unknown(name, known) for name in names]


def _unknown(name: str, known: list[str]) -> Unknown:
    if name in _ANSWERS:
        return Unknown(name, hint=_ANSWERS[name])
    return Unknown(name, *difflib.get_close_matches(name, known, n=1))


def _in_force(setting: Setting[Any]) -> InForce:
    default = setting.show(setting.default())
    source = "environment" if setting.is_set() else "default"
    problem = ""
    try:
        value = setting.show(setting.get())
    except SettingError as error:
        value = os.environ.get(setting.name, "")
        problem = str(error)
    return InForce(setting.name, value, source, default, setting.allowed, setting.doc, problem)
