"""The guides to a new chip: their commands, as they are written there, on droplet."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.droplet.conftest import ROOT, Python

DOCS = ROOT / "docs"
SECTION = re.compile(r"^## (\d).*?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PREFIXES = {"python": [], "deeplink": ["-m", "deeplink"]}
# Pages, their sections with commands, and how many commands that are.
KERNELS, FIRST_STEPS = "tutorials/new_chip.md", "tutorials/bring_up.md"
IN_C, SUITE, UNDER_PYTORCH, TRY_IT = "3", "4", "6", "3"
PAGES = {KERNELS: ((IN_C, SUITE, UNDER_PYTORCH), 7), FIRST_STEPS: ((TRY_IT,), 4)}


def commands(page: Path, sections: tuple[str, ...]) -> list[str]:
    """The lines of a page that run a program; what installs it the fixtures do."""
    found = dict(SECTION.findall(page.read_text("utf-8")))
    blocks = [block for section in sections for block in BLOCK.findall(found[section])]
    lines = [line.partition("   # ")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"([A-Z_]+=\S+ )*(python|deeplink) ", line)]


@pytest.mark.parametrize("page", PAGES)
def test_every_language_has_the_same_commands(page: str) -> None:
    sections, count = PAGES[page]
    pages = [path for path in (DOCS / page, DOCS / "zh" / page) if path.exists()]
    english, *others = (commands(path, sections) for path in pages)
    assert len(english) == count and all(other == english for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(DOCS / KERNELS, (IN_C, UNDER_PYTORCH)))
def test_a_command_runs(line: str, site: Path, python: Python) -> None:
    _runs(line, site.parent / "droplet", python)


# its last command is the whole of op_db: `make opinfo` is that for the reference device
@pytest.mark.slow
@pytest.mark.parametrize("line", commands(DOCS / FIRST_STEPS, (TRY_IT,))[:-1])
def test_a_first_step_runs(line: str, python: Python) -> None:
    _runs(line, ROOT, python)


def _runs(line: str, folder: Path, python: Python) -> None:
    words = shlex.split(line)
    count = next(at for at, word in enumerate(words) if word in PREFIXES)
    variables = dict(word.split("=", 1) for word in words[:count])
    arguments = [*PREFIXES[words[count]], *words[count + 1 :]]
    done = python(*arguments, cwd=folder, **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
