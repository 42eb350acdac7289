# SPDX-License-Identifier: Apache-2.0
"""Start a user's command with tools in its environment; format the line with tools."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.process import children
from deeplink.run import program as programs


def with_tools(command: Sequence[str], options: Sequence[str]) -> str:
    """Format the line that runs a program with tools; "" if the program is not in Python."""
    program = programs.read(command, "run")
    if program.kind == "command":
        return ""
    if (program.name, *program.arguments[:1]) == ("deeplink", "run"):
        return shlex.join(["deeplink", "run", *options, *program.arguments[1:]])
    start = ["deeplink", "run"] if settings.DITORCH.get() else ["python", "-m", "op_tools", "run"]
    return shlex.join([*start, *options, *program.words])


def run(command: Sequence[str], values: Mapping[str, str]) -> int:
    """Run a command on the device at hand, with its output shown, and return its exit code."""
    settings.watch_children(values)
    settings.activate_children()
    try:
        return children.run(command)
    except OSError as error:
        raise DeeplinkError(
            _("{command!r} cannot be started: {strerror}.").format(
                command=command[0], strerror=error.strerror
            )
        ) from None


def folder(given: Path | None, name: str) -> Path:
    """The folder of a search: the one in the options, else a new one here, else a temporary one."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeeplinkError(
                _("{given} cannot be written: {strerror}.").format(
                    given=given, strerror=error.strerror or error
                ),
                _("name a folder with -o DIR that you may write, on a disk with free space."),
            ) from None
        return given.resolve()
    number = 1
    while True:
        made = Path(f"{name}_{number}" if number > 1 else name)
        try:
            made.mkdir()
            return made.resolve()
        except FileExistsError:
            number += 1
        except OSError:  # the folder is not writable
            return Path(tempfile.mkdtemp(prefix=f"{name}_"))
