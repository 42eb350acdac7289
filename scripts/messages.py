"""Collect the messages of the sources, and bring src/deeplink/i18n/zh.po up to date.

`python -m scripts.messages` lists messages without a translation and entries without a message;
with `--write` it adds the former with an empty `msgstr`, removes the latter, and orders the file by
the sources. `--count` shows the number of messages of each package.
"""

from __future__ import annotations

import ast
import json
import string
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from deeplink import cli, settings
from deeplink.commands import help_texts
from deeplink.i18n.catalogue import entries

ROOT = Path(__file__).parents[1]
CATALOGUE = ROOT / "src/deeplink/i18n/zh.po"
MARK = "_"


@dataclass(frozen=True)
class Entry:
    """A message of the sources: its English text, and its module."""

    text: str
    place: str


def collected() -> dict[str, Entry]:
    """The messages of all sources by their texts; the first module that has one counts."""
    found: dict[str, Entry] = {}
    for path in sorted(ROOT.glob("src/**/*.py")):
        for entry in of_module(path.read_text("utf-8"), str(path.relative_to(ROOT))):
            found.setdefault(entry.text, entry)
    for text, place in (*_of_settings(), *_of_help()):
        found.setdefault(text, Entry(text, place))
    return found


def _of_settings() -> Iterator[tuple[str, str]]:
    """The meanings of the settings, and the titles of their groups."""
    for setting in settings.table():
        if setting.name not in settings.INTERNAL:
            yield setting.doc, "src/deeplink/settings/rows.py"
    for group in settings.GROUPS:
        yield group.title, "src/deeplink/settings/groups.py"


def _of_help() -> Iterator[tuple[str, str]]:
    """The texts of `--help` of all commands."""
    for text in help_texts.of(typer.main.get_command(cli.app)):
        yield text, "src/deeplink/cli.py"


def of_module(source: str, place: str) -> Iterator[Entry]:
    """The messages of a module; ValueError where a text is not written out."""
    if "deeplink.i18n" not in source:
        return
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if getattr(call.func, "id", "") == MARK:
            text = getattr(call.args[0], "value", None)
            if not isinstance(text, str):
                raise ValueError(f"{place}:{call.lineno}: a message is one literal text")
            yield Entry(text, place)


def translations() -> dict[str, str]:
    """The entries of the catalogue: translations by English texts, the header under ""."""
    return dict(entries(CATALOGUE.read_text("utf-8")))


def placeholders(text: str) -> list[tuple[str, str, str]]:
    """The placeholders of a text, sorted: name, format and conversion; not the words for a count,
    which only English has.
    """
    parts = string.Formatter().parse(text)
    fields = [(name, spec or "", kind or "") for _, name, spec, kind in parts if name]
    return sorted(field for field in fields if "|" not in field[1])


def write(found: dict[str, Entry], known: dict[str, str]) -> None:
    """Write the catalogue, ordered by module."""
    blocks = [_block("", known[""])]
    place = ""
    for entry in sorted(found.values(), key=lambda entry: entry.place):
        comment = f"#: {entry.place}\n" if entry.place != place else ""
        place = entry.place
        blocks.append(comment + _block(entry.text, known.get(entry.text, "")))
    CATALOGUE.write_text("\n\n".join(blocks) + "\n", "utf-8")


def _block(text: str, target: str) -> str:
    return "\n".join((_field("msgid", text), _field("msgstr", target)))


def _field(name: str, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return f"{name} {_quoted(text)}"
    return "\n".join([f'{name} ""', *map(_quoted, lines)])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> int:
    """Compare the sources with the catalogue; 1 where they differ."""
    found, known = collected(), translations()
    if "--count" in sys.argv:
        packages = Counter(entry.place.split("/")[1] for entry in found.values())
        for package, count in packages.most_common():
            print(f"{package}: {count}")
    if "--write" in sys.argv:
        write(found, known)
        known = translations()
    missing = [entry for entry in found.values() if not known.get(entry.text)]
    stale = [text for text in known if text and text not in found]
    for entry in missing:
        print(f"{entry.place}: no translation: {entry.text}")
    for text in stale:
        print(f"no message: {text}")
    print(f"{len(found) - len(missing)} of {len(found)} messages translated")
    return 1 if missing or stale else 0


if __name__ == "__main__":
    sys.exit(main())
