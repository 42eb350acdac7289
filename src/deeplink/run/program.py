# SPDX-License-Identifier: Apache-2.0
"""A user's program on a command line: a script, a module, or another command."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

TORCHRUN = "torch.distributed.run"
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that take a value
HINT = _("for example: deeplink {command} train.py, or deeplink {command} -m package.module")


@dataclass(frozen=True)
class Program:
    """A program and its arguments; `python` holds options of the interpreter, such as -u."""

    name: str  # path of a script, name of a module, or a command that is not Python
    arguments: tuple[str, ...]
    kind: str  # "script", "module" or "command"
    python: tuple[str, ...] = ()

    @property
    def line(self) -> list[str]:
        """The command line that starts the program."""
        if self.kind == "command":
            return [self.name, *self.arguments]
        return [sys.executable, *self.python, *self.words]

    @property
    def words(self) -> list[str]:
        """The program as arguments of `deeplink run`."""
        return [*(["-m"] if self.kind == "module" else []), self.name, *self.arguments]


def read(words: Sequence[str] | None, command: str) -> Program:
    """Parse `train.py …`, `-m module …`, `python train.py …`, `torchrun …` or another command.

    Raise DeeplinkError when there is no program or no such script. `command` is the deeplink
    command that needs the program.
    """
    rest = list(words or ())
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        raise DeeplinkError(_("no program was given."), HINT.format(command=command))
    if rest[:2] in (["accelerate", "launch"],):
        return Program("accelerate.commands.launch", tuple(rest[2:]), "module")
    if rest[0] == "torchrun":
        return Program(TORCHRUN, tuple(rest[1:]), "module")
    if rest[0] == "deeplink":
        return Program("deeplink", tuple(rest[1:]), "module")
    if rest[0] in ("python", "python3") or _is_this_python(rest[0]):
        return _of_python(rest, command)
    if rest[0] == "-m":
        return _module(rest, (), command)
    if rest[0].endswith(".py") or _is_python(Path(rest[0])):
        return _script(rest, ())
    return Program(rest[0], tuple(rest[1:]), "command")


def _is_python(file: Path) -> bool:
    """Whether a file without .py is a Python program: its first line names no other interpreter."""
    if not file.is_file() or file.suffix == ".sh":
        return False
    with file.open("rb") as opened:
        first = opened.readline(200)
    return not first.startswith((b"#!", b"\x7fELF")) or b"python" in first


def _is_this_python(word: str) -> bool:
    return word == sys.executable


def _of_python(words: list[str], command: str) -> Program:
    rest = words[1:]
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        options += rest[: 1 + (rest[0] in WITH_VALUE)]
        rest = rest[1 + (rest[0] in WITH_VALUE) :]
    if not rest:
        raise DeeplinkError(
            _("{names} names no program.").format(names=shlex.join(words)),
            HINT.format(command=command),
        )
    if rest[0] == "-m":
        return _module(rest, tuple(options), command)
    if rest[0] in ("-c", "-"):
        return Program(sys.executable, (*options, *rest), "command")
    return _script(rest, tuple(options))


def _module(rest: list[str], options: tuple[str, ...], command: str) -> Program:
    if len(rest) < 2:
        raise DeeplinkError(_("-m needs the name of a module."), HINT.format(command=command))
    return Program(rest[1], tuple(rest[2:]), "module", options)


def top_level(module: str) -> ModuleSpec | None:
    """Find the top-level package of a module, as `python -m` does, without importing it."""
    name = module.partition(".")[0]
    return PathFinder.find_spec(name, [os.getcwd()]) or importlib.util.find_spec(name)


def _script(rest: list[str], options: tuple[str, ...]) -> Program:
    if not Path(rest[0]).is_file():
        raise DeeplinkError(
            _("no script {name!r}.").format(name=rest[0]),
            _("the working directory is {cwd}.").format(cwd=Path.cwd()),
        )
    return Program(rest[0], tuple(rest[1:]), "script", options)


def python_only(program: Program, command: str) -> Program:
    """Return the program; raise DeeplinkError when it is not a script or module of this Python."""
    if program.kind != "command":
        return program
    if program.name == sys.executable:  # python -c
        raise DeeplinkError(
            _("deeplink {command} runs scripts and modules, not `python {arguments}`.").format(
                command=command, arguments=program.arguments[0]
            ),
            _("write the code to a file, and name the file."),
        )
    name = Path(program.name).name
    hint = _("for a module: deeplink {command} -m {name}; a script's name ends in .py.").format(
        command=command, name=program.name
    )
    if name.startswith("python"):
        hint = _("leave out the interpreter: the program runs in the Python of `deeplink`.")
    if Path(program.name).is_dir():
        example = f"deeplink {command} {Path(program.name, 'train.py')}"
        raise DeeplinkError(
            _("{name!r} is a folder, not a script.").format(name=program.name),
            _("name a script in it, for example: {example}").format(example=example),
        )
    raise DeeplinkError(_("no script {name!r}.").format(name=program.name), hint)
