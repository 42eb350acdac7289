"""docs/tutorials/wrong_loss.md, command by command as written there, and what each prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.program import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "wrong_loss.md"
BLOCK = re.compile(r"^```sh\n(.*?)\n```\n\n```text\n(.*?)\n```", re.MULTILINE | re.DOTALL)
PROGRAMS = {"deeplink": [sys.executable, "-m", "deeplink"], "python": [sys.executable]}


@dataclass(frozen=True)
class Command:
    """One command of the page: its variables, its line, its status, and lines that it prints."""

    variables: dict[str, str]
    line: list[str]
    status: int
    prints: list[str]


# Long, or shown by the tests of the tools themselves too.
LONG = ("pytorch-tests", "--capture", "op_tools.run_op_from_data", "--overflow")


def commands(page: Path) -> list[Command]:
    return [_command(*found) for found in BLOCK.findall(page.read_text("utf-8"))]


def _command(text: str, printed: str) -> Command:
    line, _, remark = text.partition("   # status ")
    words = shlex.split(line)
    count = next(at for at, word in enumerate(words) if "=" not in word)
    variables = dict(word.split("=", 1) for word in words[:count])
    program = [*PROGRAMS[words[count]], *words[count + 1 :]]
    return Command(variables, program, int(remark or 0), printed.splitlines())


def is_printed(wanted: str, printed: str) -> bool:
    """A line holds the parts of the wanted one between its "…", in their order."""
    parts = [re.escape(" ".join(part.split())) for part in wanted.split("…")]
    pattern = ".*".join(parts)
    return any(re.search(pattern, " ".join(line.split())) for line in printed.splitlines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands run in order: a later one reads files of an earlier one."""
    made = tmp_path_factory.mktemp("wrong_loss")
    (made / "examples").symlink_to(ROOT / "examples")
    return made


def _cases() -> list[Any]:
    return [
        pytest.param(
            command,
            id=" ".join([*command.variables, *command.line[1:]])[:80],
            marks=[pytest.mark.slow] if any(word in command.line for word in LONG) else [],
        )
        for command in commands(PAGE)
    ]


def check(command: Command, folder: Path) -> None:
    """Run a command of a page: its status, and the lines that the page says it prints."""
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    fixed = {"DEEPLINK_VENDOR": "reference", "COLUMNS": "160", "PYTHONPATH": source, "PATH": path}
    done = subprocess.run(
        command.line,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **fixed, **command.variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == command.status, said[-3000:]
    assert [line for line in command.prints if not is_printed(line, said)] == [], said[-3000:]


@pytest.mark.parametrize("command", _cases())
def test_a_command_prints_what_the_page_says(command: Command, folder: Path) -> None:
    check(command, folder)


def test_both_languages_have_the_same_commands() -> None:
    translated = ROOT / "docs" / "zh" / "tutorials" / "wrong_loss.md"
    assert len(commands(PAGE)) > 8
    assert commands(translated) == commands(PAGE)
