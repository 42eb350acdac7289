"""The statements of the documents: snippets run, links exist."""

import json
import os
import re
from pathlib import Path

import pytest

from scripts import cost_pages, docs_site, fault_pages, pytorch_tests_page, reference_pages
from tests import warm

ROOT = Path(__file__).parents[1]
DOCS, CHINESE = ROOT / "docs", ROOT / "docs" / "zh"
READMES = [ROOT / "README.md", CHINESE / "README.md"]
GUIDES = [page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(CHINESE)]
PAIRS = [READMES, *([page, CHINESE / page.relative_to(DOCS)] for page in GUIDES)]
BILINGUAL = [pair for pair in PAIRS if pair[1].exists()]
QUIRKS = DOCS / "reference" / "quirks.md"
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


WITH_SNIPPETS = [page for page in (READMES[0], *GUIDES) if snippets(page)]


def name(page: Path) -> str:
    """A page as the names of tests show it."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name)
def test_the_snippets_of_a_page_print_what_they_say(page: Path, tmp_path: Path) -> None:
    given = json.dumps(snippets(page))
    done = warm.run(["-c", RUNNER], os.environ, given=given, cwd=tmp_path, warn="default")
    assert done.returncode == 0, done.stderr
    for snippet, printed in zip(snippets(page), json.loads(done.stdout), strict=True):
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", snippet, re.MULTILINE)
        if "op_tools" in snippet:  # a tool prints what it did; the snippet's own lines are among it
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


@pytest.mark.parametrize("pair", BILINGUAL, ids=lambda pair: name(pair[0]))
def test_both_languages_have_the_same_snippets(pair: list[Path]) -> None:
    def code(page: Path) -> list[str]:
        return [re.sub(r"  # [^\n]*", "", snippet) for snippet in snippets(page)]

    assert code(pair[0]) == code(pair[1])


def test_the_page_of_quirks_shows_every_quirk() -> None:
    source = (ROOT / "src/deeplink_vendors/reference/faults.py").read_text("utf-8")
    names = re.findall(r'^    "(\w+)": Fault\(', source, re.MULTILINE)
    assert len(names) >= 10
    for page in filter(Path.exists, (QUIRKS, CHINESE / QUIRKS.relative_to(DOCS))):
        text = page.read_text("utf-8")
        assert [name for name in names if f"**`{name}`**" not in text] == []
        assert [name for name in names if f'quirk("{name}"' not in text] == []


GENERATED = {
    **reference_pages.pages(),
    **cost_pages.files(cost_pages.kept()),
    **fault_pages.files(fault_pages.kept()),
    pytorch_tests_page.PAGE: pytorch_tests_page.page(pytorch_tests_page.kept()),
}


@pytest.mark.parametrize("page", GENERATED, ids=name)
def test_a_generated_page_is_what_its_generator_writes(page: Path) -> None:
    assert page.read_text("utf-8") == GENERATED[page], (
        "run scripts.reference_pages, cost_pages, fault_pages or pytorch_tests_page"
    )


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


def test_the_navigation_of_the_site_names_every_page() -> None:
    names = {page.relative_to(DOCS).as_posix().replace("README.md", "index.md") for page in GUIDES}
    assert names ^ {page for page in docs_site.pages_of_nav() if "project/" not in page} == set()


def test_the_readmes_lead_to_the_home_page_of_the_site() -> None:
    for page in READMES:
        links = re.findall(r"\]\((?!https?://|#)([^)\s#]+\.md)", page.read_text("utf-8"))
        homes = {DOCS / "index.md", CHINESE / "index.md"}
        assert {(page.parent / link).resolve() for link in links} & homes, page


def test_every_chinese_page_has_an_english_twin() -> None:
    pages = [page.relative_to(CHINESE) for page in CHINESE.rglob("*.md")]
    assert [page for page in pages if not (DOCS / page).exists() and page.name != "README.md"] == []


def test_a_broken_link_of_the_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">Home</h1><a href="page/#there">a</a>')
    (tmp_path / "page/index.html").write_text(
        '<h2 id="there">A</h2><a href="../#top">b</a><a href="../gone/">c</a><a href="#lost">d</a>'
    )
    assert docs_site.broken_links(tmp_path) == [
        "page/index.html: ../gone/: no such page",
        "page/index.html: #lost: no such heading",
    ]


def test_links_that_leave_the_pages_lead_to_pages_of_the_site() -> None:
    files = docs_site.sources("en")
    places = {path.resolve(): page for page, path in files.items()}
    text = docs_site.relinked(DOCS / "index.md", "index.md", places, files)
    assert "[examples](project/examples.md)" in text
    page = DOCS / "howto" / "kernels_in_c.md"
    text = docs_site.relinked(page, "howto/kernels_in_c.md", places, files)
    assert "`src/diopi/include/diopi_runtime.h`" in text  # a file of the repository, no page


@pytest.mark.slow
def test_the_site_builds_without_a_warning() -> None:
    for package in ("zensical", "mkdocstrings", "mermaidx"):
        pytest.importorskip(package, reason="the extra `docs` is not installed")
    assert docs_site.build() == []
