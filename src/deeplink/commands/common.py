# SPDX-License-Identifier: Apache-2.0
"""What all commands share: the parser, the options with one meaning, and how work is loaded."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from deeplink import settings
from deeplink.commands import help_texts
from deeplink.errors import DeeplinkError, SettingError
from deeplink.i18n import ENGLISH, _, language, message, translated
from deeplink.run import runner

PROGRAM = "program"  # the parameter that holds the words of the user's program
STDOUT = "-"
# Older names of options, by the name of the option that has their meaning.
OLD_NAMES = {"--to": "--output", "--results": "--output", "--no-places": "--no-modules"}


class Chinese:
    """Help in Chinese for readers of it; English help is click's own."""

    help: str | None

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))  # type: ignore[attr-defined]
        formatter.write_usage(ctx.command_path, pieces, prefix=translated(_("Usage: ")))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        if language() == ENGLISH:
            super().format_help_text(ctx, formatter)  # type: ignore[misc]
        else:
            help_texts.write_help(formatter, self.help or "")

    @staticmethod
    def write_list(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
        """Write a section of names with texts."""
        if language() != ENGLISH:
            help_texts.write_list(formatter, title, rows)
            return
        with formatter.section(title):
            formatter.write_dl(rows)


class Command(Chinese, TyperCommand):
    """A command that has one syntax for programs, for `--json [FILE]` and for older option names.

    All words from the first positional word (or `-m`) of the program on are the program's own.
    `--option A B` of an option that may be repeated means `--option A --option B`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["line"] = list(args)
        return super().parse_args(ctx, self._plain(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in the groups that their `rich_help_panel` names."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            argument = param.param_type_name == "argument"
            if argument:
                record = (record[0].partition(" <")[0], record[1])  # without the Python type
            title = "Arguments" if argument else getattr(param, "rich_help_panel", "") or "Options"
            if language() != ENGLISH:
                record = help_texts.option(param, record)
            sections.setdefault(title, []).append(record)
        sections["Options"] = sections.pop("Options", [])  # the last one
        for title, records in sections.items():
            if records:
                self.write_list(formatter, title, records)

    def _plain(self, args: Sequence[str]) -> list[str]:
        """The words as the option parser takes them, with `--` before the program."""
        options = {
            name: param for param in self.params if hasattr(param, "is_flag") for name in param.opts
        }
        positional = [param.name for param in self.params if not hasattr(param, "is_flag")]
        fixed = len(positional) - 1 if PROGRAM in positional else len(args) + 1
        plain: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            name, has_value, value = word.partition("=") if word[:2] == "--" else (word, "", "")
            if word.startswith("--") and name not in options:
                name = _renamed(name, options)
                word = name + has_value + value
            option = options.get(name if word.startswith("--") else word[:2])
            if word == "--" or (word == "-m" and PROGRAM in positional and option is None):
                return [*plain, "--", *([] if word == "--" else [word]), *rest]
            if not word.startswith("-") or word == STDOUT:
                if not fixed:
                    return [*plain, "--", word, *rest]
                fixed -= 1
                plain.append(word)
            elif option is None or option.is_flag or has_value or _attached(word):
                plain.append(word)
            elif name == "--json":
                given = rest and (rest[0] == STDOUT or rest[0].endswith(".json"))
                plain.append(f"--json={rest.pop(0) if given else STDOUT}")
            elif option.multiple and not positional:
                while rest and not rest[0].startswith("-"):
                    plain += [word, rest.pop(0)]
            else:
                plain += [word, *rest[:1]]
                del rest[:1]
        return plain


class Group(Chinese, TyperGroup):
    """A group of commands whose help lists them in sections, one whole line for each.

    An error of this project is shown by its text, and the exit code is 2.
    """

    def invoke(self, ctx: Any) -> Any:
        with runner.errors_as_text():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if language() == ENGLISH:
            super().format_options(ctx, formatter)
            return
        shown = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        rows = [help_texts.option(param, record) for param, record in shown if record is not None]
        self.write_list(formatter, "Options", rows)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                title = getattr(command, "rich_help_panel", None) or "Commands"
                sections.setdefault(title, []).append((name, summary(command.help or "")))
        for title, rows in sections.items():
            self.write_list(formatter, title, rows)


def summary(text: str) -> str:
    """The first line of a command's help."""
    return translated(message(text.strip().partition("\n")[0]))


def _attached(word: str) -> bool:
    """Whether a short option has its value in the same word: -j4."""
    return not word.startswith("--") and len(word) > 2


def _renamed(name: str, options: dict[str, Any]) -> str:
    new = OLD_NAMES.get(name, name)
    return new if new in options else name


def group(**how: Any) -> typer.Typer:
    """A Typer with the look that all groups of commands have."""
    return typer.Typer(
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **how,
    )


# The options that mean the same in every command.


def vendors() -> list[str]:
    """The names of the installed vendors, for the completion of a shell."""
    return sorted(importlib.metadata.entry_points(group="deeplink.vendors").names)


VENDOR_HELP = "Run on this vendor's device; `deeplink doctor` lists them (DEEPLINK_VENDOR)."
JSON_HELP = "Write the result as JSON: to standard output, or to FILE (its name ends in .json)."
Program = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROGRAM",
        help="train.py ARGS, -m module ARGS, python train.py ARGS, or torchrun ARGS.",
        show_default=False,
    ),
]
VendorName = Annotated[
    str,
    typer.Option("--vendor", metavar="NAME", help=VENDOR_HELP, autocompletion=vendors),
]
Json = Annotated[str, typer.Option("--json", metavar="[FILE]", help=JSON_HELP, show_default=False)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No start-up line and no progress, only the result.")
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="End a run that takes longer.")
]


def output(help: str, metavar: str = "DIR") -> Any:
    """The option `-o/--output` of a command: where it writes."""
    return typer.Option("--output", "-o", metavar=metavar, help=help, show_default=False)


def allowed(option: str, setting: settings.Setting[Any], text: str) -> str:
    """The text of an option whose setting allows it; SettingError for another one."""
    try:
        setting.parse(text)
    except ValueError as error:
        raise SettingError(
            _("--{option} {text}: {error}; allowed: {allowed}.").format(
                option=option, text=text, error=error, allowed=setting.allowed
            ),
            _("leave out --{option} for the default.").format(option=option),
        ) from None
    return text


def write_json(found: Any, where: str) -> None:
    """Write a result to a file, or to standard output for "-"."""
    text = json.dumps(found, indent=2)
    if where == STDOUT:
        typer.echo(text)
        return
    try:
        Path(where).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise DeeplinkError(
            _("{where} cannot be written: {strerror}.").format(
                where=where, strerror=error.strerror or error
            ),
            _("name a file in a folder that exists and that you may write."),
        ) from None


# Work is done by other packages, which import torch: they are loaded when a command runs.


def work(place: str) -> Callable[..., Any]:
    """The function at `package.module:name`, loaded now."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def module_line(module: str, *words: str) -> list[str]:
    """The line that runs a module of this Python."""
    return [sys.executable, "-m", module, *words]
