# SPDX-License-Identifier: Apache-2.0
"""The files and tables of OpTimeMeasure: a row for each call, and summaries, the slowest first."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from deeplink.console import console
from deeplink.i18n import _
from op_tools.core import output_paths, terminal, tool_errors
from op_tools.timing.aggregate import VIEWS, Group, Line, Times, View, summed

TIMES = ("name", "forward_id", "forward_elasped", "backward_elasped", "unit")
COLUMNS = (*TIMES, "input", "output", "grad_inputs", "grad_outputs")
_SHOWN: dict[View, int] = {"op": 15, "shape": 6, "module": 6, "line": 6}
_TITLES: dict[View, str] = {
    "op": _("Operators, the slowest first"),
    "shape": _("By the shapes of their arguments"),
    "module": _("By module"),
    "line": _("By line of the program"),
}
_COLUMNS: dict[View, str] = {
    "op": _("op"),
    "shape": _("shape"),
    "module": _("module"),
    "line": _("line"),
}


def line_of(cells: Iterable[object]) -> str:
    """Format cells as a line of a CSV file."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


class Csv:
    """The classic file: a header, and a row for each call. The first row creates the file."""

    def __init__(self, folder: Path) -> None:
        name = f"op_elasped_info_pid{output_paths.owner(folder)}_{output_paths.stamp()}"
        self.path = folder / f"{name}.csv"
        self._begun = False
        self._failed = False

    def write(self, lines: bytes) -> None:
        """Append lines of `line_of`; a full disk ends the file, not the program."""
        if not lines or self._failed:
            return
        try:
            if not self._begun:
                self._begun, self.path = True, output_paths.create(self.path)
                lines = line_of(COLUMNS).encode() + lines
            with self.path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            self._failed = True
            tool_errors.add("OpTimeMeasure", str(self.path), error)


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    """Write the times by operator, shapes, module and line, for `deeplink report`."""
    rows = [
        {
            "op": group.kind.op,
            "shape": group.kind.shape,
            "module": group.kind.module,
            "site": f"{group.kind.site.file}:{group.kind.site.line}" if group.kind.site else "",
            "forward": _metrics(group.forward),
            "backward": _metrics(group.backward),
            "flops": group.flops,
            "backward_flops": group.backward_flops,
            "bytes": group.bytes,
            "backward_bytes": group.backward_bytes,
            "collective": group.collective.kind if group.collective is not None else "",
        }
        for group in groups
    ]
    try:
        path.write_text(json.dumps({"kind": "time", "version": 1, "groups": rows}), "utf-8")
    except OSError as error:  # a full disk ends the file, not the program
        tool_errors.add("OpTimeMeasure", str(path), error)


def _metrics(times: Times) -> dict[str, float]:
    percentiles = {"p50": times.percentile(0.5), "p95": times.percentile(0.95)}
    return {"calls": times.count, "total": times.total, "least": times.warm, **percentiles}


# Tables.


def show(groups: Sequence[Group], nested: bool) -> None:
    """Print the summary: by operator, by shape, by module, by line, and the collectives."""
    for by in VIEWS:
        lines = summed(groups, by, nested)
        if by == "op" or len(lines) > 1:
            _show_lines(_TITLES[by], lines, _SHOWN[by], by)
    _show_collectives([group for group in groups if group.collective is not None])


# The heading, the rank and the cell of each column: a narrow terminal shows the lowest ranks only.
_CELLS: tuple[tuple[str, int, Callable[[Line], str]], ...] = (
    (_("calls"), 1, lambda line: str(line.calls)),
    (_("total ms"), 0, lambda line: f"{line.total:.3f}"),
    (_("share"), 0, lambda line: f"{line.share:.1%}"),
    (_("fwd mean"), 5, lambda line: _ms(line.forward.mean)),
    ("fwd p50", 1, lambda line: _ms(line.forward.percentile(0.5))),
    ("fwd p95", 2, lambda line: _ms(line.forward.percentile(0.95))),
    (_("bwd mean"), 5, lambda line: _ms(line.backward.mean)),
    ("bwd p50", 1, lambda line: _ms(line.backward.percentile(0.5))),
    ("bwd p95", 2, lambda line: _ms(line.backward.percentile(0.95))),
    (
        _("first"),
        4,
        lambda line: _ms((line.forward if line.forward.count else line.backward).first),
    ),
    (_("least"), 4, lambda line: _ms((line.forward if line.forward.count else line.backward).warm)),
    ("GFLOP/s", 3, lambda line: f"{line.gflops:.1f}" if line.gflops else ""),
    ("GB/s", 3, lambda line: f"{line.gbytes:.1f}" if line.gbytes else ""),
)


def _ms(value: float) -> str:
    return f"{value:.4f}" if value else ""


def _show_lines(title: str, lines: Sequence[Line], limit: int, by: View) -> None:
    chosen = [cell for cell in _CELLS if cell[1] <= (console().width - 60) // 16]
    rows = [(line.name, *(show(line) for _name, _rank, show in chosen)) for line in lines[:limit]]
    if len(lines) > limit:
        rest = Line("rest", share=sum(line.share for line in lines[limit:]))
        rest.forward.total = sum(line.total for line in lines[limit:])
        cells = [
            show(rest) if name in ("total ms", "share") else "" for name, _rank, show in chosen
        ]
        rows.append((_("({count} more)").format(count=len(lines) - limit), *cells))
    columns = (_COLUMNS[by], *(name for name, _rank, _show in chosen))
    terminal.show_table(
        _("{title} (ms of the device)").format(title=title), columns, rows, numbers=True
    )


def _show_collectives(groups: Sequence[Group]) -> None:
    rows = []
    for group in sorted(groups, key=lambda group: -group.forward.total):
        what, times = group.collective, group.forward
        if what is None or not times.count:
            continue
        speed = what.bytes * times.count / times.total / 1e6 if times.total else 0.0
        rows.append(
            (
                what.kind + (_(" (async, until done)") if what.asynchronous else ""),
                group.kind.site.short if group.kind.site else "",
                *(str(times.count), str(what.size), str(what.bytes)),
                *(f"{times.percentile(0.5):.4f}", f"{times.total:.3f}"),
                *(f"{speed:.3f}", f"{speed * what.bus_factor:.3f}"),
            )
        )
    if rows:
        columns = [_("collective"), _("line"), _("calls"), _("ranks"), _("bytes"), "p50"]
        columns += [_("total ms"), "alg GB/s", "bus GB/s"]
        terminal.show_table(_("Collectives"), columns, rows, numbers=True)


def grid(name: str, identity: int, what: str, ms: float) -> str:
    """Format the time of one call as the small table of the classic tools."""
    return terminal.grid(
        ("name", "forward_id", what, "unit"), [(name, identity, f"{ms:.8f}", "ms")]
    )
