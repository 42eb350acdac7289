# SPDX-License-Identifier: Apache-2.0
"""The texts of `--help` in Chinese: each paragraph, comment and option is a message.

English help is written by click. Its wrapping takes one character for one column, so Chinese help
is wrapped here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from deeplink.i18n import _, message, translated

RAW = "\b"  # click's mark of a paragraph that keeps its lines
OWN = (  # texts of click and of `deeplink.commands.common`
    *(_("Usage: "), _("Options"), _("Arguments"), _("Commands")),
    *(_("Show this message and exit."), _("default: "), _("required")),
)
_COMMENTED = re.compile(r"( *\S.*?)(\s{2,})(\S.*)")
MARGIN = 30  # columns of the names of options at most, as click has it


@dataclass(frozen=True)
class Part:
    """A piece of help: code that stays, and a text; `indent` columns before it."""

    text: str
    code: str = ""
    indent: int = 0


def parts(help: str) -> Iterator[Part]:
    """The pieces of a command's help. An empty piece separates paragraphs."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(help))):
        if number:
            yield Part("")
        lines = paragraph.split("\n")
        if lines[0] == RAW:
            yield from _kept(lines[1:])
        else:
            yield Part(" ".join(line.strip() for line in lines))


def _kept(lines: list[str]) -> Iterator[Part]:
    """The pieces of a paragraph that keeps its lines: a title, then lines of code with comments, or
    one text.
    """
    title, *rest = lines
    yield Part(title)
    if title == "Exit codes:":
        yield Part(" ".join(line.strip() for line in rest), indent=2)
        return
    waiting: Part | None = None
    for line in rest:
        found = _COMMENTED.fullmatch(line)
        if line.startswith(" " * 20) and waiting is not None:  # a comment on two lines
            waiting = Part(f"{waiting.text} {line.strip()}", waiting.code)
            continue
        if waiting is not None:
            yield waiting
        waiting = Part(found[3], found[1] + found[2]) if found else Part("", line)
    if waiting is not None:
        yield waiting


def of(command: Any) -> Iterator[str]:
    """All texts of a command and of the commands in it."""
    yield from (part.text for part in parts(command.help or "") if part.text)
    for param in command.params:
        yield from filter(None, (getattr(param, "help", ""), _panel(param)))
    for each in getattr(command, "commands", {}).values():
        yield from filter(None, (_panel(each),))
        yield from of(each)


def _panel(thing: Any) -> str:
    panel = getattr(thing, "rich_help_panel", None)
    return panel if isinstance(panel, str) else ""


# Writing.


def write_help(formatter: Any, help: str) -> None:
    """Write a command's help."""
    formatter.write_paragraph()
    for part in parts(help):
        start = " " * (2 + part.indent) + part.code
        lines = wrapped(translated(message(part.text)), formatter.width - columns(start))
        for number, line in enumerate(lines):
            before = start if number == 0 else " " * columns(start)
            formatter.write(f"{before}{line}".rstrip() + "\n")


def option(param: Any, record: tuple[str, str]) -> tuple[str, str]:
    """The name and the help of an option, in the reader's language."""
    help = getattr(param, "help", "") or record[1].partition("  [")[0]
    rest = record[1].removeprefix(help)
    for text in ("default: ", "required"):
        rest = rest.replace(text, translated(message(text)))
    return record[0], translated(message(help)) + rest


def write_list(formatter: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Write a section of names with texts, as click does."""
    rows = list(rows)
    first = min(max(columns(name) for name, _text in rows), MARGIN) + 2
    with formatter.section(translated(message(title))):
        before = " " * formatter.current_indent
        for name, text in rows:
            lines = wrapped(text, max(formatter.width - first - len(before), 10))
            inside = columns(name) <= first - 2
            start = before + name + " " * (first - columns(name)) if inside else before + name
            if not inside:
                formatter.write(start + "\n")
                start = before + " " * first
            for number, line in enumerate(lines):
                formatter.write((start if number == 0 else before + " " * first) + line + "\n")


def columns(text: str) -> int:
    """The columns of a text on a terminal."""
    from rich.cells import cell_len  # only help in Chinese needs it

    return cell_len(text)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text: words stay whole, Chinese breaks anywhere but at punctuation."""
    pieces = re.findall(r"[（“]*(?:[\x21-\x7e]+|\S)[，。；：、）”！？]*|\s+", text)
    lines, line = [], ""
    for piece in pieces:
        if columns(line + piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()]
