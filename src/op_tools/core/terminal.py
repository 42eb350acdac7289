# SPDX-License-Identifier: Apache-2.0
"""The output of the tools on the terminal; OP_TOOLS_VERBOSE adds the classic tables."""

from __future__ import annotations

import csv
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deeplink import settings
from deeplink.console import Output, console, table
from deeplink.i18n import _, joined
from op_tools.core import spelling, tool_errors
from op_tools.core.call import Call

if TYPE_CHECKING:
    from op_tools.core.options import Options
    from op_tools.core.tool import Started, Tool

TENSOR_COLUMNS = (
    *("name", "device", "dtype", "numel", "shape", "stride", "requires_grad", "layout"),
    *("data_ptr", "value"),
)
# The order of the tables of every tool but OpCapture.
CALL_COLUMNS = (
    *("name", "shape", "stride", "numel", "dtype", "device", "requires_grad", "layout"),
    *("data_ptr", "value"),
)
_lock = threading.Lock()


def verbose() -> bool:
    """Whether each call is shown in a table."""
    return settings.OP_TOOLS_VERBOSE.get()


def write(text: str = "") -> None:
    """Print a line; lines of several threads do not mix."""
    with _lock:
        Output().write(text + "\n")


def announce(tool: Tool, name: str, applied: bool) -> None:
    """Print `apply OpCaptureHook on torch.add` for a call, if calls are shown."""
    if verbose():
        write(f"{'apply' if applied else 'skip'} {tool.hook} on {name}")


def resolved(tool: Tool, options: Options) -> None:
    """Print the operators that single words in a list mean."""
    for line in spelling.explained(options.ops):
        console(stderr=True).print(f"{type(tool).__name__}: {line}", soft_wrap=True)


def saved(path: object) -> None:
    """Print `… saved`, if calls are shown."""
    if verbose():
        write(f"{path} saved")


# The classic tables.


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table in plain characters, with centred cells."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in texts)]) for i, name in enumerate(columns)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(cells: Sequence[str]) -> str:
        padded = (cell.center(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    return "\n".join([rule, line(columns), rule, *(line(row) for row in texts), rule])


def show_file(path: Path, columns: int | None = None) -> None:
    """Print the classic table at the end: the first columns of a CSV file."""
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row[:columns] for row in csv.reader(file)]
    write(grid(rows[0], rows[1:]))


def tensor_rows(label: str, value: Any) -> list[tuple[object, ...]]:
    """A row for each tensor or value: `torch.add inputs[0]`, `torch.add inputs [1][0]`."""
    values = value if isinstance(value, tuple) and type(value) is tuple else (value,)
    rows: list[tuple[object, ...]] = []
    for i, item in enumerate(values):
        single = len(values) == 1
        if isinstance(item, (list, tuple)) and not isinstance(item, torch.Size):
            parts = enumerate(item)
            rows.extend(_row(f"{label} [{i}][{j}]", part) for j, part in parts)
        elif isinstance(item, dict):
            rows.extend(_row(f"{label} {key}", part) for key, part in item.items())
        else:
            rows.append(_row(label if single else f"{label}[{i}]", item))
    return rows


def argument_rows(
    label: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[object, ...]]:
    """The rows of a call's arguments; keyword arguments are shown by name."""
    rows = tensor_rows(label, args)
    for key, value in kwargs.items():
        rows += tensor_rows(f"{label} {key}", value)
    return rows


def _row(name: str, value: Any) -> tuple[object, ...]:
    if not isinstance(value, Tensor):
        return (name, *[""] * 8, value)
    dense = value.layout == torch.strided and not value.is_nested
    return (
        name,
        value.device,
        str(value.dtype).removeprefix("torch."),
        value.numel(),
        str(tuple(value.shape)) if not value.is_nested else "",
        str(tuple(value.stride())) if dense else "",
        value.requires_grad,
        value.layout,
        value.data_ptr() if dense else "",
        "",
    )


def call_table(rows: Iterable[Sequence[object]], columns: Sequence[str] = CALL_COLUMNS) -> str:
    """Format the table of a call. The cells of `rows` are in the order of TENSOR_COLUMNS; an empty
    column of values is left out.
    """
    cells = [dict(zip(TENSOR_COLUMNS, row, strict=True)) for row in rows]
    if all(row["value"] == "" for row in cells):
        columns = columns[:-1]
    return grid(columns, [[row[column] for column in columns] for row in cells])


def show_call(header: str, call: Call | str, rows: Iterable[Sequence[object]], *more: str) -> None:
    """Print a call as the classic tools do: a header, the line of the program that made the call
    (or `call` itself, a text), and the tables, between three empty lines.
    """
    lines = ["", "", "", *([header] if header else [])]
    lines.append(call if isinstance(call, str) else call.where)
    if settings.OP_TOOLS_PRINT_STACK.get():
        lines += [line.rstrip() for line in traceback.format_stack()[:-2]]
    write("\n".join([*lines, call_table(rows), *more, "", "", ""]))


PERIOD = 10.0  # seconds between two lines of progress, at least
_last = 0.0


def progress(step: int, tools: Sequence[Tool]) -> None:
    """Print what the tools have seen so far, to a terminal that does not show the program's own
    output: there the line could break into a line of the program.
    """
    global _last
    now = time.monotonic()
    if now - _last < PERIOD:
        return
    _last = now
    if verbose() or not tools or Output().isatty() or not Output(stderr=True).isatty():
        return
    parts = [
        _("{name} {applied} {applied:call|calls}{so_far}").format(
            name=type(tool).__name__, applied=tool.started.applied, so_far=tool.so_far()
        )
        for tool in tools
    ]
    Output(stderr=True).write(
        _("[op_tools] step {step}: {names}\n").format(step=step, names=", ".join(parts))
    )


# The summary at the end.

PROBLEM = "Problem:"  # the first line of a verdict
ERRORS = 5  # kinds of errors in a tool that are shown


def show_lines(lines: Iterable[str]) -> None:
    """Print the lines of a summary; the first line of a verdict is red."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True, style="bold red" if line.startswith(PROBLEM) else None)


def summary(tool: Tool, started: Started, lines: Iterable[str] = ()) -> None:
    """Print the results of a tool, or why it saw no call, and the errors inside it."""
    name, texts = type(tool).__name__, list(lines)
    if not started.applied:
        reason = why_nothing(tool, started)
        texts.append(
            _("{name}: nothing was seen. {why_nothing}").format(name=name, why_nothing=reason)
        )
    unmatched = [e for e in started.ops.unmatched if e != ".*"]
    if unmatched and started.applied:
        entries = ", ".join(unmatched)
        texts.append(_("{name}: never matched: {names}").format(name=name, names=entries))
    kernels = ", ".join(spelling.kernels_of(unmatched))
    if kernels:
        hint = _("Hint: {kernels} names the kernel inside other operators.")
        texts.append(hint.format(kernels=kernels))
    errors = tool_errors.report(name)
    for error, count in errors[:ERRORS]:
        times = _("once") if count == 1 else _("{count} {count:time|times}").format(count=count)
        text = _("{name}: error inside the tool, {times} on {op} (the program went on): {message}")
        texts.append(text.format(name=name, times=times, op=error.op, message=error.message))
    if len(errors) > ERRORS:
        text = _("{name}: and {count} other {count:kind|kinds} of errors")
        texts.append(text.format(name=name, count=len(errors) - ERRORS))
    show_lines(texts)


def why_nothing(tool: Tool, started: Started) -> str:
    """The most likely reason why a tool worked on no call."""
    options = started.options
    if not options.ops:
        return _("OP_{key}_LIST is empty, so no operator is in it.").format(key=tool.key)
    if started.ops.unmatched == list(options.ops):
        return _("No operator that was called is in the list {names}.").format(
            names=",".join(options.ops)
        )
    if started.refused:
        because = _("{count} because {text}")
        texts = [because.format(count=n, text=text) for text, n in started.refused.items()]
        return _("Calls were left out: {reasons}.").format(reasons=joined(", ", texts))
    skipped = Counter(tool_errors.skipped()) - Counter(started.skipped)
    if skipped:
        texts = [_("{count} x {text}").format(count=n, text=text) for text, n in skipped.items()]
        return _("Calls that no tool can observe: {reasons}.").format(reasons=joined(", ", texts))
    watched = ",".join(options.devices) or _("every device but the CPU")
    if not started.elsewhere:
        if started.disabled.matched:
            return _("Left out by OP_{key}_DISABLE_LIST: {names}.").format(
                key=tool.key, names=", ".join(started.disabled.matched)
            )
        return _("No call was made; the tool watches {watched}.").format(watched=watched)
    kinds = ",".join(sorted(started.elsewhere))
    return _(
        "Calls were made on {kinds}; the tool watches {watched}. Hint: OP_TOOLS_DEVICES={kinds}"
    ).format(kinds=kinds, watched=watched)


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False
) -> None:
    """Print a table of the summary; `numbers` aligns all columns but the first to the right."""
    console().print(table(title, columns, rows, numbers=numbers))


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, each in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count} bytes"
