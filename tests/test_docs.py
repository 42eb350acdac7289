"""What the READMEs say is so: their settings table, their snippets, their links."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deeplink import settings

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "docs" / "zh" / "README.md"]
PAGES = [*READMES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def snippets(page: Path) -> list[str]:
    """The python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", READMES, ids=["en", "zh"])
def test_the_settings_table_is_complete(page: Path) -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (\S+) \| (.+) \|$", page.read_text("utf-8"), re.MULTILINE
    )
    assert [name for name, _, _ in rows] == [setting.name for setting in settings.table()]
    if page is READMES[0]:
        assert [doc for _, _, doc in rows] == [setting.doc for setting in settings.table()]


@pytest.mark.parametrize("number", range(3))
def test_a_snippet_of_the_readme_prints_what_it_says(number: int, tmp_path: Path) -> None:
    snippet = snippets(READMES[0])[number]
    expected = re.findall(r"^print\(.*\) +# (.*)$", snippet, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected) > 0
    for line, wanted in zip(printed, expected, strict=True):
        assert line == wanted or (wanted.endswith("…") and line.startswith(wanted[:-1]))


def test_both_languages_have_the_same_snippets() -> None:
    def code(page: Path) -> list[str]:
        return [re.sub(r"  # [^\n]*", "", snippet) for snippet in snippets(page)]

    assert code(READMES[0]) == code(READMES[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
