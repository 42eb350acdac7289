"""Build the site of the documentation, in English and in Chinese, into site/ and site/zh/.

    python -m scripts.docs_site              build; a warning or a broken link is an error
    python -m scripts.docs_site --stage      only write what the generator reads, below build/docs
    python -m scripts.docs_site --install    first install the tools of the extra `docs`

The pages are written for a reader of the repository. This script copies them to build/docs, where
links to files outside of docs/ become links to pages of the site or plain text, adds the Chinese
titles of sections, shows the English page where a Chinese one is missing, and runs Zensical once
for each language. It then checks every link and anchor of the result. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "zensical.toml"
STAGE, SITE = ROOT / "build/docs", ROOT / "site"
LANGUAGES = ("en", "zh")
# Pages of the site that lie outside of docs/.
PROJECT = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
}
HOME = {"README.md": "index.md", "docs/zh/README.md": "index.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def sources(language: str) -> dict[str, Path]:
    """The files of a language's site by their path in it; English where there is no Chinese."""
    docs = ROOT / "docs"
    files = [path for path in docs.rglob("*") if path.is_file()]
    english = {
        path.relative_to(docs).as_posix(): path
        for path in files
        if not path.is_relative_to(docs / "zh")
    }
    found = english | {
        page: ROOT / path for path, page in PROJECT.items() if (ROOT / path).exists()
    }
    if language == "zh":
        translated = {
            path.relative_to(docs / "zh").as_posix(): path
            for path in files
            if path not in english.values()
        }
        found |= {name: path for name, path in translated.items() if name != "README.md"}
    return {name.replace("README.md", "index.md"): path for name, path in found.items()}


def stage(language: str) -> Path:
    """Write the pages and the configuration of one language; the folder of both."""
    folder = STAGE / language
    shutil.rmtree(folder, ignore_errors=True)
    files = sources(language)
    places = {path.resolve(): name for name, path in files.items()}
    # A link to the English page leads to the Chinese one where there is one, and the reverse.
    for name in files:
        for other in (ROOT / "docs" / name, ROOT / "docs/zh" / name):
            places.setdefault(other.resolve(), name)
    places |= {(ROOT / path).resolve(): name for path, name in HOME.items()}
    config = tomllib.loads(CONFIG.read_text("utf-8"))
    note = config["languages"]["zh"]["untranslated"]
    for name, path in files.items():
        target = folder / "docs" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, target)
            continue
        text = relinked(path, name, places, files)
        generated = name.startswith(("diopi/", "conformance/", "reference/api/", "project/"))
        if language == "zh" and not generated and not _is_chinese(path):
            text = re.sub(r"^(# .*\n)", rf"\1\n!!! note\n\n    {note}\n", text, count=1, flags=re.M)
        target.write_text(text, "utf-8")
    script = folder / "docs/assets/mermaid.js"
    script.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_mermaid(), script)
    (folder / "zensical.toml").write_text(_toml(configuration(config, language, files)), "utf-8")
    return folder


def relinked(path: Path, name: str, places: dict[Path, str], files: dict[str, Path]) -> str:
    """The text of a page with its links as the site needs them; code is left alone."""

    def link(match: re.Match[str]) -> str:
        image, text, address = match.groups()
        file, mark, anchor = address.partition("#")
        goal = (path.parent / file).resolve()
        if goal in places:
            if _is_chinese(files[places[goal]]) != _is_chinese(path):
                mark = anchor = ""  # headings differ between the languages
            there = posixpath.relpath(places[goal], posixpath.dirname(name) or ".")
            return f"{image}[{text}]({there}{mark}{anchor})"
        if not goal.exists():
            raise SystemExit(f"{path.relative_to(ROOT)}: there is no {address}")
        return text if "`" in text else f"`{goal.relative_to(ROOT)}`"

    parts = FENCE.split(path.read_text("utf-8"))
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _is_chinese(path: Path) -> bool:
    return path.is_relative_to(ROOT / "docs/zh")


def configuration(config: dict[str, Any], language: str, files: dict[str, Path]) -> dict[str, Any]:
    """The configuration of one language."""
    project = config["project"]
    python = project["plugins"]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / path) for path in python["paths"]]
    project["docs_dir"], project["site_dir"] = "docs", "html"
    project["extra_javascript"] = ["assets/mermaid.js"]
    project["validation"] = {"invalid_links": True, "invalid_link_anchors": True}
    here, there = ("./", "zh/") if language == "en" else ("../", "./")
    project["extra"] = {
        "generator": False,
        "alternate": [
            {"name": "English", "link": here, "lang": "en"},
            {"name": "中文", "link": there, "lang": "zh"},
        ],
    }
    sections: dict[str, str] = {}
    if language == "zh":
        words = config["languages"]["zh"]
        sections = words["sections"]
        project["theme"]["language"] = "zh"
        project["site_description"] = words["site_description"]
        for palette in project["theme"]["palette"]:
            key = "dark_mode" if palette["scheme"] == "default" else "light_mode"
            palette["toggle"]["name"] = words[key]
    project["nav"] = list(_nav(project["nav"], sections, files))
    return {"project": project}


def _nav(entries: list[Any], sections: dict[str, str], files: dict[str, Path]) -> Iterator[Any]:
    """The navigation with translated titles, patterns resolved, README as index."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry.replace("README.md", "index.md")
            continue
        ((title, inside),) = entry.items()
        if isinstance(inside, str) and "*" not in inside:
            yield {sections.get(title, title): inside}
            continue
        if isinstance(inside, str):
            folder = posixpath.dirname(inside)
            pages = sorted(name for name in files if Path(name).match(inside))
            inside = [name for name in pages if posixpath.dirname(name) == folder]
            inside = [name for name in inside if posixpath.basename(name) != "index.md"]
        yield {sections.get(title, title): list(_nav(inside, sections, files))}


def pages_of_nav() -> set[str]:
    """Every page that the navigation names, as a path below docs/."""
    config = tomllib.loads(CONFIG.read_text("utf-8"))
    return set(_flat(list(_nav(config["project"]["nav"], {}, sources("en")))))


def _flat(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from _flat([inside] if isinstance(inside, str) else inside)


def _toml(value: Any, path: tuple[str, ...] = ()) -> str:
    """A configuration as TOML: tables by their paths, everything else inline."""
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    tables = {key: item for key, item in value.items() if isinstance(item, dict) and item}
    lines += [f"{_key(k)} = {_inline(v)}" for k, v in value.items() if k not in tables]
    lines += [_toml(item, (*path, key)) for key, item in tables.items()]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else _inline(key)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _mermaid() -> Path:
    """The script that draws the diagrams, from the package that has it; no page fetches one."""
    found = importlib.util.find_spec("mermaidx")
    if found is None or found.origin is None:
        raise SystemExit("mermaidx is not installed.\nHint: pip install -e '.[docs]'")
    return Path(found.origin).parent / "assets/mermaid.js"


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if value and key in ("href", "src"):
                self.links.append(value)
            elif value and (key == "id" or (key == "name" and tag == "a")):
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Links within a built site that lead nowhere, and resources that a page would fetch."""
    pages = {path: _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: the server shows it for any address
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.is_file():
                found.append(f"{path.relative_to(site)}: {link}: no such page")
            elif parts.fragment and goal in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[goal].anchors and anchor != "__top":
                    found.append(f"{path.relative_to(site)}: {link}: no such heading")
    return found


def build() -> list[str]:
    """Build both languages; what is wrong with them."""
    shutil.rmtree(SITE, ignore_errors=True)
    for language in LANGUAGES:
        folder = stage(language)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        warnings = re.findall(r"^.*(?:warning|error)\b.*$", output, re.IGNORECASE | re.MULTILINE)
        if done.returncode or warnings:
            return [f"{language}: zensical exits with {done.returncode}", output]
        shutil.copytree(
            folder / "html", SITE if language == "en" else SITE / language, dirs_exist_ok=True
        )
    return broken_links(SITE)


def install() -> None:
    """Install the tools of the extra `docs` that this environment lacks."""
    if all(map(importlib.util.find_spec, ("zensical", "mkdocstrings_handlers", "mermaidx"))):
        return
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tools = extras["optional-dependencies"]["docs"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *tools], check=True)
    importlib.invalidate_caches()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stage", action="store_true", help="only write the generator's input")
    parser.add_argument("--install", action="store_true", help="install the tools where missing")
    options = parser.parse_args()
    if options.install:
        install()
    if options.stage:
        for language in LANGUAGES:
            print(stage(language))
        return 0
    wrong = build()
    print("\n".join(wrong) or f"docs: {len(list(SITE.rglob('*.html')))} pages in {SITE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
