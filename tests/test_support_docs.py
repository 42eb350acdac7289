"""The support table matches the records, for exactly the vendors in the tree."""

import importlib
import re
from pathlib import Path

import pytest

from deeplink.vendor import Vendor

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("src/deeplink_vendors/*/__init__.py"))
PAGES = {"en": ROOT / "docs/reference/support.md", "zh": ROOT / "docs/zh/reference/support.md"}
LEVELS = {
    "hardware": "硬件",
    "real package on a stub": "真包加桩",
    "names only": "仅名字",
    "reference device": "参考设备",
    "fake package": "假包",
    "not checked": "未检查",
}
COLUMNS = 9  # vendor, chips, device, brought by, visible devices, and four that say how they know


def rows(page: Path) -> list[list[str]]:
    """The cells of the vendors' table."""
    lines = re.findall(r"^\| (`\w+` \|.*) \|$", page.read_text("utf-8"), re.MULTILINE)
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]
    return [row for row in cells if len(row) == COLUMNS]


def known(row: list[str]) -> list[str]:
    """Identify the cells of a row; the last one names the collective library before it."""
    return [re.sub(r"^\w+`[:：] ?", "", cell) for cell in row[5:]]


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_table_lists_the_vendors_in_the_tree(page: Path) -> None:
    assert [row[0] for row in rows(page)] == FOLDERS


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_row_says_what_the_record_says(page: Path) -> None:
    for name, _, device, brought_by, visible, *_, collective in rows(page):
        vendor: Vendor = importlib.import_module(f"deeplink_vendors.{name}").vendor
        assert device == vendor.device
        assert brought_by == (vendor.device_module or "–")
        assert visible == (vendor.visible_devices or "–")
        assert collective.startswith(f"{vendor.collective}`")


def test_every_cell_says_how_it_is_known_in_both_languages_alike() -> None:
    english, chinese = (rows(page) for page in PAGES.values())
    for row, translated in zip(english, chinese, strict=True):
        assert [LEVELS[word] for word in known(row)] == known(translated), row[0]


@pytest.mark.parametrize(("language", "page"), PAGES.items(), ids=PAGES)
def test_every_word_is_explained(language: str, page: Path) -> None:
    words = LEVELS if language == "en" else LEVELS.values()
    text = page.read_text("utf-8")
    assert [word for word in words if f"- **{word}**" not in text] == []
