"""What the pages say is so: the snippets, the links."""

import json
import os
import re
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", ROOT / "docs" / "zh" / "README.md"]
GUIDES = [
    "device.md",
    "operators.md",
    "memory_and_profiling.md",
    "bring_up.md",
    "new_chip.md",
    "support.md",
    "ditorch.md",
    "op_tools.md",
    "wrong_loss.md",
    "stories.md",
    "diagnosis.md",
    "dicp.md",
    "dlinfer.md",
]
BILINGUAL = [READMES, *([ROOT / "docs" / name, ROOT / "docs" / "zh" / name] for name in GUIDES)]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def snippets(page: Path) -> list[str]:
    """The python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


# Runs every snippet of a page in one process, each in a namespace of its own.
RUNNER = """
import contextlib, io, json, sys
printed = []
for snippet in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(snippet, snippet, "exec"), {"__name__": "__main__"})
    printed.append(output.getvalue().splitlines())
print(json.dumps(printed))
"""


@pytest.mark.parametrize("page", [pair[0] for pair in BILINGUAL], ids=lambda page: page.stem)
def test_the_snippets_of_a_page_print_what_they_say(page: Path, tmp_path: Path) -> None:
    given = json.dumps(snippets(page))
    done = warm.run(["-c", RUNNER], os.environ, given=given, cwd=tmp_path, warn="default")
    assert done.returncode == 0, done.stderr
    for snippet, printed in zip(snippets(page), json.loads(done.stdout), strict=True):
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", snippet, re.MULTILINE)
        if "op_tools" in snippet:  # a tool says what it did; the snippet's own lines are among it
            printed = _among(printed, expected)
        assert len(printed) == len(expected) > 0, snippet
        for line, wanted in zip(printed, expected, strict=True):
            assert _is(line, wanted), snippet


def _is(line: str, wanted: str) -> bool:
    return line == wanted or (wanted.endswith("…") and line.startswith(wanted[:-1]))


def _among(printed: list[str], expected: list[str]) -> list[str]:
    """The lines that are expected, as far as they are found in their order."""
    lines = iter(printed)
    return [
        found
        for wanted in expected
        if (found := next((line for line in lines if _is(line, wanted)), None)) is not None
    ]


@pytest.mark.parametrize("pair", BILINGUAL, ids=lambda pair: pair[0].stem)
def test_both_languages_have_the_same_snippets(pair: list[Path]) -> None:
    def code(page: Path) -> list[str]:
        return [re.sub(r"  # [^\n]*", "", snippet) for snippet in snippets(page)]

    assert code(pair[0]) == code(pair[1])


def test_the_reference_device_page_shows_every_quirk() -> None:
    source = (ROOT / "src/deeplink_vendors/reference/faults.py").read_text("utf-8")
    names = re.findall(r'^    "(\w+)": Fault\(', source, re.MULTILINE)
    assert len(names) >= 10
    for page in BILINGUAL[1]:
        text = page.read_text("utf-8")
        assert [name for name in names if f"**`{name}`**" not in text] == []
        assert [name for name in names if f'quirk("{name}"' not in text] == []


def test_links_within_the_repository_lead_somewhere() -> None:
    def leads(page: Path, link: str) -> bool:
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        return target.exists() and (not heading or heading in anchors(target))

    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\((?!https?://)([^)\s]+)", page.read_text("utf-8"))
        if not leads(page, link)
    ]
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in headings}


def test_every_guide_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    open_pages = [READMES[0]]
    while open_pages:
        page = open_pages.pop()
        links = re.findall(r"\]\((?!https?://|#)([^)\s#]+\.md)", page.read_text("utf-8"))
        found = {(page.parent / link).resolve() for link in links} - reached
        reached |= found
        open_pages += found
    assert [page for page in ROOT.glob("docs/**/*.md") if page.resolve() not in reached] == []
