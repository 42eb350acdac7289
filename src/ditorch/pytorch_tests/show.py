# SPDX-License-Identifier: Apache-2.0
"""The printed results of a run: counts, causes of failures, changes since another run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from deeplink.console import console, table
from ditorch.pytorch_tests import pairs, results
from ditorch.pytorch_tests.device_config import DeviceConfig
from ditorch.pytorch_tests.pairs import Count, Pair
from ditorch.pytorch_tests.results import CPU, DEVICE, RESULTS, SIDES, Row

SHOWN = 20  # rows of a printed list; the CSV has all of them


def show(rows: Sequence[Row], found: Sequence[Pair], rules: DeviceConfig, output: Path) -> bool:
    """Print the results; return whether the device fails a test that is not listed as failing."""
    out = console()
    _show_counts(out, rows)
    if any(pair.counts for pair in found):
        _show_pairs(out, pairs.count(found))
    _show_reasons(out, rows)
    out.print(f"{len(rows)} rows in {output}", soft_wrap=True)
    for pattern in pairs.obsolete(rows, rules):
        out.print(f"gaps.toml: {pattern!r} passes now; remove the entry", style="yellow")
    if any(row.device == CPU for row in rows):
        news = [pair.row for pair in pairs.unlisted(found)]
        _list(out, "failing on the device alone, and not in gaps.toml", news, "red")
        broken = [row for row in rows if row.device != CPU and row.bad and not row.test]
        return bool(news or broken)
    return any(row.bad for row in rows if rules.known_gap(results.Test(*row.key)) is None)


def show_changes(before: Sequence[Row], rows: Sequence[Row]) -> bool:
    """Print what changed since another run; return whether a test fails newly."""
    out = console()
    changed = results.diff(before, rows)
    _list(out, "newly failing", changed.newly_failing, "red")
    _list(out, "newly passing", changed.newly_passing, "green")
    _list(out, "disappeared", changed.disappeared, "yellow")
    return bool(changed.newly_failing)


def _show_counts(out: Console, rows: Sequence[Row]) -> None:
    columns = ("file", "rows of", *RESULTS, "chip", "shim")
    cells = [
        (
            line.file,
            line.device,
            *(str(line.counts.get(name, 0)) for name in RESULTS),
            *(str(line.causes.get(name, 0)) for name in ("chip", "shim")),
        )
        for line in results.summary(rows)
    ]
    for about in SIDES:
        own = [cell for cell in cells if cell[1] == about]
        if own:
            sums = [str(sum(int(cell[at]) for cell in own)) for at in range(2, len(columns))]
            cells.append(("total", about, *sums))
    out.print(table("PyTorch's own tests", columns, cells))


def _show_pairs(out: Console, lines: Sequence[Count]) -> None:
    columns = ("file", "CPU passes", "device passes", "share", "listed", "not listed")
    cells = [
        (
            line.file,
            str(line.cpu_passed),
            str(line.both),
            f"{line.share:.2f} %",
            str(sum(count for kind, count in line.known.items() if kind)),
            str(line.known.get("", 0)),
        )
        for line in lines
    ]
    out.print(table("Tests that the CPU passes, on the device", columns, cells))


def _show_reasons(out: Console, rows: Iterable[Row]) -> None:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.bad and row.device == DEVICE:
            found.setdefault((row.cause, row.reason), []).append(row)
    if not found:
        return
    order = sorted(found.items(), key=lambda item: -len(item[1]))
    cells = [(*why, str(len(own)), f"{own[0]}: {own[0].message[:120]}") for why, own in order]
    out.print(table("Failures", ("cause", "reason", "rows", "first"), cells))


def _list(out: Console, title: str, rows: Sequence[Row], style: str) -> None:
    out.print(f"{title}: {len(rows)}", style=style if rows else "")
    for row in rows[:SHOWN]:
        out.print(f"  {row}  {row.message[:160]}".rstrip(), soft_wrap=True)
    if len(rows) > SHOWN:
        out.print(f"  … and {len(rows) - SHOWN} more")
