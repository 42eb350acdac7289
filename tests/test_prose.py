"""scripts/prose: what it finds in code and documents, and what it leaves alone."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts/prose"


def prose(root: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output of the script for a tree."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--root", root, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_a_docstring_that_opens_with_an_anaphor_fails_the_check(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", 'def f():\n    """The same for lists."""\n')
    status, output = prose(tmp_path, "--check")
    assert status == 1
    assert "src/a.py:2: anaphor: The same for lists." in output


def test_this_with_its_noun_is_no_anaphor(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", '"""This module loads records."""\n')
    assert prose(tmp_path, "--list") == (0, "")


def test_glossary_words_are_found_in_docstrings_comments_and_messages(tmp_path: Path) -> None:
    write(
        tmp_path,
        "src/a.py",
        '"""Load records."""\n'
        "# the store settles pending writes\n"
        'raise ValueError("the card is not there any more")\n',
    )
    write(tmp_path, "src/b.cpp", "int x; // callers are told\n/* one\n * guilty call */\n")
    _, output = prose(tmp_path, "--list")
    assert [line.split(": ")[0] for line in output.splitlines()] == [
        "src/a.py:3",
        "src/a.py:2",
        "src/b.cpp:1",
        "src/b.cpp:3",
    ]
    assert "'card' (GPU)" in output


def test_plain_english_and_quoted_words_are_no_findings(tmp_path: Path) -> None:
    write(
        tmp_path,
        "src/a.py",
        '"""Return the path as well as the look-up table; `cards` is a published name."""\n'
        'name = "well"\n',
    )
    assert prose(tmp_path, "--list") == (0, "")


def test_a_term_that_is_wrapped_over_two_lines_is_found(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", "# flush what\n# waits; values are looked\n# up in a table\n")
    _, output = prose(tmp_path, "--list")
    assert [line.split(": ", 2)[:2] for line in output.splitlines()] == [
        ["src/a.py:1", "'what waits' (pending)"]
    ]


def test_code_and_documents_are_checked_apart(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "word " * 60 + "end.\n")
    assert prose(tmp_path, "--check", "code")[0] == 0
    assert prose(tmp_path, "--check", "documents")[0] == 1
    write(tmp_path, "README.md", "Short.\n")
    write(tmp_path, "src/a.py", '"""Those that wait."""\n')
    assert prose(tmp_path, "--check", "documents")[0] == 0
    assert prose(tmp_path, "--check", "code")[0] == 1


def test_a_list_of_a_path_has_its_findings_only(tmp_path: Path) -> None:
    write(tmp_path, "src/a/x.py", "# nobody writes it\n")
    write(tmp_path, "src/b/x.py", "# nobody writes it\n")
    assert prose(tmp_path, "--list", "src/b")[1].startswith("src/b/x.py:1: 'nobody'")
    assert "src/a" not in prose(tmp_path, "--list", "src/b")[1]


def test_long_sentences_and_paragraphs_of_documents_fail_the_check(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "word " * 60 + "end.\n")
    write(tmp_path, "docs/page.md", "# A\n\n" + "Five short words are here. " * 30 + "\n")
    status, output = prose(tmp_path, "--check")
    assert status == 1
    assert "README.md: 61.0 words a sentence, at most 25" in output
    assert "docs/page.md:3: a paragraph of 150 words, at most 120" in output


def test_code_tables_and_chinese_pages_are_not_measured(tmp_path: Path) -> None:
    long = "word " * 200
    write(tmp_path, "docs/page.md", f"A line.\n\n```sh\n{long}\n```\n\n| a |\n|---|\n| {long} |\n")
    write(tmp_path, "docs/zh/page.md", long)
    assert prose(tmp_path, "--check")[0] == 0


def test_added_lines_are_checked_against_a_revision(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", "# nobody writes it\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    assert prose(tmp_path, "--since", "HEAD") == (0, "")
    write(tmp_path, "src/a.py", "# nobody writes it\nx = 1  # it is mended\n")
    status, output = prose(tmp_path, "--since", "HEAD")
    assert status == 1
    assert output.startswith("src/a.py:2: 'mended' (fix)")
