"""docs/tutorials/stories.md, command by command, as it is written there, and what each prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.test_wrong_loss import ROOT, Command, check, commands

PAGE = ROOT / "docs" / "tutorials" / "stories.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands run in order: a later one reads files of an earlier one."""
    made = tmp_path_factory.mktemp("stories")
    (made / "examples").symlink_to(ROOT / "examples")
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", commands(PAGE), ids=lambda c: " ".join([*c.variables, *c.line[1:]])[:80]
)
def test_a_command_prints_what_the_page_says(command: Command, folder: Path) -> None:
    check(command, folder)


def test_both_languages_have_the_same_commands() -> None:
    assert len(commands(PAGE)) > 8
    assert commands(ROOT / "docs" / "zh" / "tutorials" / "stories.md") == commands(PAGE)
