# SPDX-License-Identifier: Apache-2.0
"""The format of a tool's verdict: problem, where, evidence, workaround, next step."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink.i18n import _, joined

LAUNCHERS = ("__main__.py", "ipykernel_launcher.py")  # scripts that are not the user's
INDENT = " " * len("Workaround: ")


@dataclass(frozen=True)
class Problem:
    """A problem and its workaround. Empty fields are not shown."""

    what: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    workaround: str = ""  # a command
    next: str = ""  # a command, or the file to send

    def lines(self) -> list[str]:
        """The verdict as text, one field below the other."""
        fields: list[tuple[str, Sequence[str]]] = [
            (_("Problem:    {text}"), (self.what,)),
            (_("Where:      {text}"), (self.where,)),
            (_("Evidence:   {text}"), self.evidence),
            (_("Workaround: {text}"), (self.workaround,)),
            (_("Next:       {text}"), (self.next,)),
        ]
        return [
            joined("", (INDENT, text)) if at else field.format(text=text)
            for field, texts in fields
            for at, text in enumerate(filter(None, texts))
        ]

    def as_dict(self) -> dict[str, Any]:
        """The verdict for a JSON file."""
        return {
            "problem": self.what,
            "where": self.where,
            "evidence": list(self.evidence),
            "workaround": self.workaround,
            "next": self.next,
        }


CLASSES = {"fallback": "OpFallback", "autocompare": "OpAutoCompare", "capture": "OpCapture"}


def run_command(tool: str, ops: str = "", *, modules: str = "", steps: str = "") -> str:
    """The command that runs this program under a tool of `deeplink run`; in a notebook, which has
    no command, the `with` line that starts the tool.
    """
    if is_notebook():
        return with_line(CLASSES[tool], ops, modules=modules, steps=steps)
    words = ["--fallback", ops or ".*"] if tool == "fallback" else [f"--{tool}"]
    if ops and tool != "fallback":
        words += ["--ops", ops]
    for option, value in (("--modules", modules), ("--steps", steps)):
        words += [option, value] if value else []
    return f"deeplink run {shlex.join(words)} {_program()}"


def is_notebook() -> bool:
    """Whether this process is a kernel of a notebook, or a shell of IPython."""
    return hasattr(sys.modules.get("__main__"), "get_ipython")


def with_line(tool: str, ops: str = "", *, modules: str = "", steps: str = "") -> str:
    """The line of Python that starts a tool."""
    selected = []
    if modules:
        selected.append(f"modules={modules.split(',')!r}")
    if steps:
        selected.append(f"steps=op_tools.Steps.parse({steps!r})")
    arguments = [repr(ops)] if ops else []
    if selected:
        arguments.append(f"select=op_tools.Selection({', '.join(selected)})")
    return f"with op_tools.{tool}({', '.join(arguments)}):"


def program_in(command: str) -> str:
    """The program of a command line such as `deeplink run --time train.py --lr 1`: what follows
    the options of deeplink; an example if none is recognized.
    """
    words = shlex.split(command)
    for at, word in enumerate(words):
        if word == "-m" and words[at + 1 : at + 2] not in (["deeplink"], ["op_tools"], []):
            return shlex.join(words[at:])
        if word.endswith(".py") and Path(word).name not in LAUNCHERS:
            return shlex.join(words[at:])
    return "train.py"


def _program() -> str:
    """The program and its arguments, as a user types them."""
    arguments = [each for each in sys.argv if each]
    if not arguments or Path(arguments[0]).suffix != ".py":
        return "train.py"  # not started as a script: an example
    script = Path(arguments[0])
    with contextlib.suppress(ValueError):  # outside of the working directory
        script = script.resolve().relative_to(Path.cwd())
    return shlex.join([str(script), *arguments[1:]])
