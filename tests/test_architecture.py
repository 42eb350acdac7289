"""ARCHITECTURE.md names what exists: packages, their parts and the files of the walks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.test_import_law import ALLOWED, ORDER

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
CODE = re.compile(r"`([^`\n]+)`")
SUFFIXES = {".py", ".cpp", ".h"}
LARGEST = 30  # files of code in a folder
MOST_FILES = {
    "`x + y` on `dipu`": 6,
    "a captured call": 8,
    "a checked call": 10,
    "a compiled graph": 8,
    "a decode step": 6,
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    after = re.split(rf"^#+ {heading}$", PAGE, maxsplit=1, flags=re.M)[1]
    section = re.split(r"^#+ ", after, maxsplit=1, flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def parts(package: str) -> list[str]:
    return [part for first, *_ in rows(package) for part in CODE.findall(first)]


def test_the_table_of_packages_is_the_law() -> None:
    words = {name.strip("`"): imports for name, _, _, imports in rows("Packages")}
    assert words.keys() == ALLOWED.keys()
    for package, allowed in ALLOWED.items():
        named = {"–": set(), "all of them": set(ALLOWED) - {package}}
        assert named.get(words[package], set(words[package].split(", "))) == allowed


@pytest.mark.parametrize("package", [name for name in ALLOWED if name != "deeplink_vendors"])
def test_every_part_of_a_package_exists(package: str) -> None:
    for part in parts(package):
        path = SRC / package / part
        assert path.is_dir() if part.endswith("/") else path.with_suffix(".py").is_file(), part


@pytest.mark.parametrize("package", [*ORDER, "ditorch", "diopi"])
def test_every_package_inside_a_package_has_its_line(package: str) -> None:
    top = package.partition(".")[0]
    folder = SRC.joinpath(*package.split("."))
    inside = [path.parent for path in folder.glob("*/__init__.py")]
    inside += [path.parent for path in folder.glob("csrc/*/*.h")]
    for path in inside:
        name = path.relative_to(SRC / top).as_posix() + "/"
        assert any(part.startswith(name) for part in parts(top)), f"{name} of {package}"


@pytest.mark.parametrize("call", MOST_FILES)
def test_a_walk_is_short_and_its_files_exist(call: str) -> None:
    (under, files), *_ = [
        cells for name, *cells in rows("Walks: the files of one call") if name == call
    ]
    named = CODE.findall(files)
    more = len(files.split(", ")) - len(named)  # what is in no file of ours
    assert 1 < len(named) + more <= MOST_FILES[call]
    for file in named:
        assert (SRC / under.strip("`") / file).is_file(), file


def test_every_other_path_exists() -> None:
    for text in CODE.findall(re.sub(r"^\|.*", "", PAGE, flags=re.M)):
        if "/" in text and " " not in text:
            assert (ROOT / text).exists() or (SRC / text).exists(), text


def test_a_folder_holds_few_files() -> None:
    code = [
        p for top in ("src", "tests") for p in (ROOT / top).rglob("*.*") if p.suffix in SUFFIXES
    ]
    folders = Counter(path.parent for path in code)
    assert [str(folder) for folder, count in folders.items() if count > LARGEST] == []
