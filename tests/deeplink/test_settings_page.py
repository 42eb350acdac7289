"""docs/reference/settings.md and its Chinese twin match the table of settings."""

import re
from pathlib import Path

import pytest

from deeplink import settings
from scripts import settings_page


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_current(language: str) -> None:
    """`python -m scripts.settings_page` writes it."""
    assert settings_page.PAGES[language].read_text("utf-8") == settings_page.page(language)


def test_the_page_leaves_out_what_processes_of_the_project_tell_each_other() -> None:
    text = settings_page.page("en")
    assert [name for name in settings.INTERNAL if name in text] == []


def test_the_file_of_the_page_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "deeplink.toml"
    example = re.search(r"```toml\n(.*?)```", settings_page.page("en"), re.DOTALL)
    assert example is not None
    path.write_text(example[1])
    file = settings.file.read(path)
    rows = {settings.KEYS.get(setting.name): setting for setting in settings.table()}
    values = {key: rows[key].get(source=file) for key in file.values}
    assert values["autocompare.tolerance.float16"] == (1e-3, 1e-3)
    assert values["recorder.limit"] == 256 * 2**20
