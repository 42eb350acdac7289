"""The Chinese documents: complete, in one vocabulary, with the code of the English ones."""

import re
import tomllib
from pathlib import Path

import pytest

from scripts import messages

ROOT = Path(__file__).parents[1]
CHINESE = ROOT / "docs/zh"
# Pages that are written by a script, or are tables of code names: English in both languages.
GENERATED = (
    *("docs/conformance/", "docs/diopi/", "docs/reference/api/", "docs/reference/cli.md"),
    *("docs/reference/dicp_models.md", "docs/reference/dicp_ops.md"),
    *("docs/reference/dlinfer_models.md", "docs/reference/kernels.md"),
    "docs/reference/pytorch_tests.md",
)
TERMS = tomllib.loads((CHINESE / "terms.toml").read_text("utf-8"))["term"]
VARIANTS = {variant: term["chinese"] for term in TERMS for variant in term["variants"]}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What is no text: code, targets of links, comments, tags, paths of images.
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|<[^>]*>|https?://\S+|\"[^\"]*\"", re.DOTALL)


def english() -> list[Path]:
    """The English pages that have a Chinese one."""
    names = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    return [ROOT / name for name in sorted(names) if not name.startswith(("docs/zh/", *GENERATED))]


def counterpart(page: Path) -> Path:
    return CHINESE / page.relative_to(ROOT / "docs")


PAIRS = [pytest.param(page, id=str(page.relative_to(ROOT / "docs"))) for page in english()]
PAIRS.append(pytest.param(ROOT / "README.md", id="README"))


def pair(page: Path) -> tuple[str, str]:
    """The texts of an English page and of its Chinese one."""
    other = CHINESE / "README.md" if page.name == "README.md" else counterpart(page)
    return page.read_text("utf-8"), other.read_text("utf-8")


def test_every_page_has_a_chinese_one() -> None:
    assert [
        str(page.relative_to(ROOT)) for page in english() if not counterpart(page).exists()
    ] == []


def test_every_chinese_page_has_an_english_one() -> None:
    pages = {counterpart(page) for page in english()} | {CHINESE / "README.md"}
    assert sorted(set(CHINESE.rglob("*.md")) - pages) == []


@pytest.mark.parametrize("page", PAIRS)
def test_both_pages_have_the_same_sections(page: Path) -> None:
    levels = [re.findall(r"^(#+) ", FENCE.sub("", text), re.MULTILINE) for text in pair(page)]
    assert levels[0] == levels[1]


@pytest.mark.parametrize("page", PAIRS)
def test_both_pages_have_the_same_tables(page: Path) -> None:
    lines = [re.findall(r"^\|.*\|$", FENCE.sub("", text), re.MULTILINE) for text in pair(page)]
    columns = [[len(re.findall(r"(?<!\\)\|", line)) for line in each] for each in lines]
    assert columns[0] == columns[1]


@pytest.mark.parametrize("page", PAIRS)
def test_both_pages_have_the_same_code(page: Path) -> None:
    codes = [[_code(block) for block in FENCE.findall(text)] for text in pair(page)]
    assert codes[0] == codes[1]


def _code(block: str) -> str:
    """A block without its comments; of a diagram, that there is one."""
    first, _, rest = block.partition("\n")
    if first == "```mermaid":
        return first
    return first + "".join(re.sub(r"(^|\s+)# .*$", "", line) for line in rest.split("\n"))


@pytest.mark.parametrize("page", sorted(CHINESE.rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_the_words_of_the_table(page: Path) -> None:
    assert drift(CODE.sub(" ", FENCE.sub(" ", page.read_text("utf-8")))) == []


def test_the_messages_have_the_words_of_the_table() -> None:
    found = {text: drift(CODE.sub(" ", target)) for text, target in messages.translations().items()}
    assert {text: words for text, words in found.items() if text and words} == {}


def drift(text: str) -> list[str]:
    """Variants of the terms in a text, each with the term."""
    text = re.sub(r"[\w.-]*[./_-][\w./-]*|\{[^}]*\}", " ", text)  # names of code, placeholders
    return [
        f"{variant}: {chinese}"
        for variant, chinese in VARIANTS.items()
        if re.search(rf"\b{variant}\b" if variant.isascii() else variant, text)
    ]


def test_drift_is_found_in_text_and_not_in_code() -> None:
    assert drift("厂商的 kernel 与显存") == ["kernel: 算子实现", "显存: 内存"]
    text = "`kernel` 与 [算子](kernel.md)"
    assert drift(CODE.sub(" ", text)) == []


def test_the_terms_are_used() -> None:
    pages = "".join(page.read_text("utf-8") for page in CHINESE.rglob("*.md"))
    words = [word for term in TERMS for word in re.split("、", term["chinese"])]
    assert [word for word in words if word not in pages] == []
