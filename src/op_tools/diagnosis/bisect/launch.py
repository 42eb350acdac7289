"""A user's command as it is, with tools of ours started in it by the environment."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deeplink import children, settings
from deeplink.errors import DeeplinkError

PYTHON = ("python", "python3")


def command_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What stands behind the options: `-- python train.py`, or a script alone."""
    rest = list(words[1:] if words[:1] == ["--"] else words)
    if not rest:
        parser.error("which program? Say it behind --, as in: -- python train.py")
    if rest[0] in PYTHON and len(rest) == 1:
        parser.error("python, and which script?")
    if rest[0] in PYTHON:  # ours: another one has no tools to start
        rest[0] = sys.executable
    if rest[0] == "deeplink":  # that of this Python, wherever it is installed
        rest[:1] = [sys.executable, "-m", "deeplink"]
    if rest[0].endswith(".py"):
        rest.insert(0, sys.executable)
    return rest


def with_tools(command: Sequence[str], options: Sequence[str]) -> str:
    """Format the line that runs a program with tools: "" where the program is not Python's."""
    rest = list(command)
    if rest[1:4] == ["-m", "deeplink", "run"]:
        return shlex.join(["deeplink", "run", *options, *rest[4:]])
    if rest[:1] == [sys.executable] and len(rest) > 1 and not _is_option(rest[1]):
        return shlex.join(["python", "-m", "op_tools", "run", *options, *rest[1:]])
    return ""


def _is_option(word: str) -> bool:
    """Whether a word is an option of Python itself; -m and its module are of the program."""
    return word.startswith("-") and word != "-m"


def run(command: Sequence[str], values: Mapping[str, str]) -> int:
    """Its exit code; it runs on the device at hand, and what it prints is seen."""
    settings.watch_children(values)
    settings.activate_children()
    try:
        return children.run(command)
    except OSError as error:
        raise DeeplinkError(f"{command[0]!r} cannot be started: {error.strerror}.") from None


def folder(given: Path | None, name: str) -> Path:
    """Where a search writes: what was asked for, else a new folder here, else a temporary one."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeeplinkError(
                f"{given} cannot be written: {error.strerror or error}.",
                "name a folder with -o DIR that you may write and that has room.",
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
        except OSError:  # a folder that may not be written
            return Path(tempfile.mkdtemp(prefix=f"{name}_"))
