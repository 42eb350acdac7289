# SPDX-License-Identifier: Apache-2.0
"""The commands about native parts and caches: build, cache info, cache clean."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from deeplink import caches
from deeplink.commands import common
from deeplink.console import console, table
from deeplink.i18n import _
from deeplink.process import children

Which = Annotated[
    Literal["native", "graphs"] | None,
    typer.Argument(metavar="CACHE", help="native or graphs; default: both.", show_default=False),
]


def build(
    context: typer.Context,
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART", help="For example torch_dipu, op_tools; default: all."),
    ] = None,
) -> None:
    """Build the native parts now, not on first use

    \b
    Examples:
      deeplink build
      deeplink build torch_dipu op_tools

    \b
    Exit codes:
      0 the parts are built, 2 there is no such part, no compiler, or the folder cannot be written
    """
    raise typer.Exit(children.run(common.module_line("deeplink.build", *(parts or ()))))


cache = common.group(
    help="""Show or delete built native parts and compiled graphs

    \b
    Examples:
      deeplink cache info
      deeplink cache clean native

    \b
    Exit codes:
      0 done, 2 an entry cannot be deleted
    """
)


@cache.command(cls=common.Command)
def info(context: typer.Context, which: Which = None, json: common.Json = "") -> None:
    """Show the folders of the caches and their sizes

    \b
    Examples:
      deeplink cache info
      deeplink cache info native --json

    \b
    Exit codes:
      0 shown
    """
    found = caches.entries(which or "")
    if json:
        common.write_json([{**asdict(each), "path": str(each.path)} for each in found], json)
    if json == common.STDOUT:
        return
    out = console()
    rows = [(each.cache, each.path.name, str(each.files), _size(each.size)) for each in found]
    if rows:
        out.print(table(_("Caches"), (_("cache"), _("name"), _("files"), _("size")), rows))
    for name, folder in caches.folders().items():
        if which in (None, name):
            size = sum(each.size for each in found if each.cache == name)
            out.print(
                _("{name}: {size} in {folder}").format(name=name, size=_size(size), folder=folder),
                soft_wrap=True,
            )


@cache.command(cls=common.Command)
def clean(
    context: typer.Context,
    which: Which = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
) -> None:
    """Delete the caches; what is needed is built again

    \b
    Examples:
      deeplink cache clean --dry-run
      deeplink cache clean graphs

    \b
    Exit codes:
      0 deleted, 2 an entry cannot be deleted
    """
    out = console()
    found = caches.entries(which or "")
    if dry_run:
        for each in found:
            out.print(
                _("would delete {path} ({size})").format(path=each.path, size=_size(each.size)),
                soft_wrap=True,
            )
        return
    freed = caches.clean(found)
    plural = _("entry") if len(found) == 1 else _("entries")
    out.print(
        _("deleted {count} {plural}, {size}").format(
            count=len(found), plural=plural, size=_size(freed)
        )
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
