"""Tables for a terminal: one look for every report."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deeplink import settings

# Columns of names, which a reader copies: never broken over two lines.
NO_WRAP = ("vendor", "name", "check", "status", "time", "from")
STYLES = {
    "ok": "green",
    "available": "green",
    "skipped": "dim",
    "unavailable": "yellow",
    "FAILED": "bold red",
    "broken": "bold red",
}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of plain texts; a cell that is a known state gets its colour."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False
    )
    for column in columns:
        # a column of free text may be broken anywhere, but nothing is ever left out
        made.add_column(column, no_wrap=column in NO_WRAP, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return made


WIDTH = 100  # of a report in a file or a pipe, where nobody says how wide a line may be


def console(stderr: bool = False) -> Console:
    """Where reports go; plain text when it is no terminal, and no guessing at markup."""
    made = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)
    if not made.is_terminal and not settings.columns():
        made.width = WIDTH
    return made
