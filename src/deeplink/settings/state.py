"""The settings as they stand in this process, and variables that look like one."""

import difflib
import os
from dataclasses import dataclass
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
    """A variable that looks like one of ours and is not; `meant` is the nearest that is."""

    name: str
    meant: str = ""


def in_force() -> list[InForce]:
    """Each setting's value and where it comes from. Never raises: a bad value is a problem."""
    return [_in_force(setting) for setting in table()]


def unknown() -> list[Unknown]:
    """The variables of the environment that start like ours and that nothing reads."""
    known = [setting.name for setting in table()]
    names = sorted(n for n in os.environ if n.startswith(PREFIXES) and n not in known)
    return [Unknown(name, *difflib.get_close_matches(name, known, n=1)) for name in names]


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
