"""Requirements of a release: one version, metadata, licence lines, and current pictures."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import deeplink
from scripts import overhead_chart, record_terminal

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_is_the_same_everywhere() -> None:
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert PROJECT["version"] == deeplink.__version__ == newest[1]


def test_the_metadata_names_authors_systems_and_versions() -> None:
    assert PROJECT["authors"] == [{"name": "DeepLink contributors"}]
    assert PROJECT["keywords"]
    assert "Operating System :: POSIX :: Linux" in PROJECT["classifiers"]
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_the_source_archive_has_the_files_of_the_repository_and_no_others(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no clone: what belongs to it is not known")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    listed = subprocess.run(["git", "ls-files"], cwd=clone, stdout=subprocess.PIPE, check=True)
    for stray in ("src/ditorch/_C.so", "op_tools_results/run.json", "src/dicp/__pycache__/a.pyc"):
        (clone / stray).parent.mkdir(parents=True, exist_ok=True)
        (clone / stray).touch()
    build = "from scikit_build_core.build import build_sdist; build_sdist('dist')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=clone, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    (path,) = clone.glob("dist/deeplink-*.tar.gz")
    with tarfile.open(path) as archive:
        found = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    left_out = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["scikit-build"]
    expected = {
        name
        for name in listed.stdout.decode().splitlines()
        if not any(Path(name).is_relative_to(one) for one in left_out["sdist"]["exclude"])
    }
    assert found == expected | {"PKG-INFO"}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.py", '"""A."""\n', '# SPDX-License-Identifier: Apache-2.0\n"""A."""\n'),
        ("b.py", "#!/bin/python\nx\n", "#!/bin/python\n# SPDX-License-Identifier: Apache-2.0\nx\n"),
        ("c.cpp", "int x;\n", "// SPDX-License-Identifier: Apache-2.0\nint x;\n"),
        ("d.h", "int x;\n", "/* SPDX-License-Identifier: Apache-2.0 */\nint x;\n"),
        ("e.csv", "a,b\n", "a,b\n"),
    ],
)  # fmt: skip
def test_the_licence_line_is_put_once_at_the_top(
    name: str, before: str, after: str, tmp_path: Path
) -> None:
    for folder in ("scripts", "src"):
        (tmp_path / folder).mkdir()
    script = shutil.copy(ROOT / "scripts/spdx", tmp_path / "scripts")
    path = tmp_path / "src" / name
    path.write_text(before)

    def run(*arguments: str) -> int:
        return subprocess.run([sys.executable, script, *arguments], check=False).returncode

    assert run("--check") == int(before != after)
    assert path.read_text() == before
    assert run() == run() == 0
    assert path.read_text() == after
    assert run("--check") == 0


def test_the_overhead_chart_shows_its_data() -> None:
    """`python -m scripts.overhead_chart` draws it."""
    data = json.loads(overhead_chart.DATA.read_text("utf-8"))
    assert overhead_chart.PAGE.read_text("utf-8") == overhead_chart.svg(data)
    assert {bar["tool"] for task in data["tasks"] for bar in task["bars"]} == set(
        data["conditions"]
    )


def test_the_chart_takes_our_bars_from_a_measurement() -> None:
    data = {"tasks": [{"bars": [{"tool": "DeepLink", "case": "a", "ratio": 1.0}, {"tool": "x"}]}]}
    runs = [[{"what": "a", "ratio": ratio}] for ratio in (1.234, 1.5, 1.1)]
    bar = overhead_chart.replaced(data, runs)["tasks"][0]["bars"][0]
    assert (bar["ratio"], bar["range"]) == (1.23, "1.10 to 1.50")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/images").glob("*.svg")), ids=lambda p: p.name)
def test_a_picture_is_well_formed_and_loads_nothing(page: Path) -> None:
    text = page.read_text("utf-8")
    ElementTree.fromstring(text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("10 %\r20 %", ["20 %"]),
        ("long line\r\x1b[2Kshort", ["short"]),
        ("a\r\nb\r\n\x1b[2A\x1b[Jc", ["c"]),
        ("\x1b[31mred\x1b[0m & plain", ['<tspan fill="#ff7b72">red</tspan> &amp; plain']),
        ("\x1b[?25lhidden cursor\x1b[?25h", ["hidden cursor"]),
    ],
)
def test_the_recorder_shows_what_a_terminal_shows(text: str, shown: list[str]) -> None:
    screen = record_terminal.Screen()
    screen.feed(text)
    assert screen.shown() == shown


def test_a_film_is_as_long_as_its_pauses() -> None:
    film = record_terminal.Film()
    film.show("$ ", 0.3)
    film.show("x", 0.02)  # too soon for a frame of its own
    film.show("y", 1.0)
    assert [begin for begin, _ in film.frames] == [0.3, 1.32]
    assert film.frames[0][1] == ["$ x"]
    ElementTree.fromstring(record_terminal.svg(film))
