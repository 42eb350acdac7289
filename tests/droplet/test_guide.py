"""docs/new_chip.md: the commands of a vendor in C, as they are written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.droplet.conftest import ROOT, Python

PAGES = [ROOT / "docs" / "new_chip.md", ROOT / "docs" / "zh" / "new_chip.md"]
SECTION = re.compile(r"^## (\d).*?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PREFIXES = {"python": [], "deeplink": ["-m", "deeplink"]}
IN_C, SUITE, UNDER_PYTORCH = "3", "5", "7"


def commands(page: Path, sections: tuple[str, ...]) -> list[str]:
    """The lines of a page that run a program; what installs it the fixtures do."""
    found = dict(SECTION.findall(page.read_text("utf-8")))
    blocks = [block for section in sections for block in BLOCK.findall(found[section])]
    lines = [line.partition("   # ")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"([A-Z_]+=\S+ )*(python|deeplink) ", line)]


def test_both_languages_have_the_same_commands() -> None:
    english, chinese = (commands(page, (IN_C, SUITE, UNDER_PYTORCH)) for page in PAGES)
    assert english == chinese and len(english) == 7


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(PAGES[0], (IN_C, UNDER_PYTORCH)))
def test_a_command_runs(line: str, site: Path, python: Python) -> None:
    words = shlex.split(line)
    count = next(at for at, word in enumerate(words) if word in PREFIXES)
    variables = dict(word.split("=", 1) for word in words[:count])
    arguments = [*PREFIXES[words[count]], *words[count + 1 :]]
    done = python(*arguments, cwd=site.parent / "droplet", **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
