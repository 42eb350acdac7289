# SPDX-License-Identifier: Apache-2.0
"""The output of OpAutoCompare: tables, a CSV file, the summary."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from deeplink import settings
from deeplink.i18n import _, joined
from deeplink.judge import Verdict
from deeplink.judge.verdict import name_of
from op_tools.compare.host_verdicts import Item, RecordedCall, with_missing, with_values
from op_tools.compare.problems import problems, write
from op_tools.core import output_paths, terminal, tool_errors
from op_tools.core.call import Call, Site
from op_tools.core.gradients import Gradients
from op_tools.core.worker import Periodic
from op_tools.tensors.host_transfer import mapped

if TYPE_CHECKING:
    from op_tools.compare.tool import OpAutoCompare
    from op_tools.core.tool import Started

COLUMNS = (
    *("forward_id", "name", "allclose", "cosine_similarity", "max_abs_diff"),
    *("max_relative_diff", "atol", "rtol", "error_info"),
)
SUMMARY = (_("name"), _("what"), _("line"), _("module"), _("times"), _("error / tolerance"))
_EXTRA = COLUMNS.index("cosine_similarity")  # a column of the file that the tables leave out
SHOWN = 20  # rows of the summary
UNBOUNDED = ("ascend", "ulp")  # standards that allow a share of the elements any error
EXPLAINED = 5  # operators whose problem is described


@dataclass(frozen=True)
class Failure:
    """One part of one call that is wrong."""

    id: int
    name: str
    item: str  # input[0], output, grad[1], memory
    direction: str
    verdict: Verdict
    level: str = "api"
    step: int = 0
    module: str = ""
    site: Site | None = None
    saved: str = ""  # the folder with the call, both sides

    @property
    def where(self) -> str:
        return str(self.site) if self.site is not None else _("(unknown line)")

    @staticmethod
    def of(call: Call, direction: str, item: Item, saved: str) -> Failure:
        if call.direction == "backward":
            direction = "backward"
        return Failure(
            *(call.id, call.name, item.label, direction, item.verdict),
            *(call.level, call.step, call.module, call.site, saved),
        )


# The CSV file.


class Rows:
    """Rows of the CSV file: one for each part of a call, under one header, on disk in a second.

    A second file, of JSON lines, has more than the classic columns, for `deeplink report`.
    """

    def __init__(self) -> None:
        folder = output_paths.folder("op_autocompare_result")
        time = datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S")
        stem = f"op_autocompare_info_pid{output_paths.owner(folder)}_{time}"
        self.path, number = folder / f"{stem}.csv", 1
        while self.path.exists():
            self.path, number = folder / f"{stem}_{number}.csv", number + 1
        self._limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._pending: list[tuple[object, ...]] = []
        self._details: list[str] = []
        self._header = _lines([COLUMNS])
        self._lock = threading.RLock()
        self._periodic = Periodic(self.flush)

    def add(self, call: Call, direction: str, items: Sequence[Item]) -> None:
        with self._lock:
            self._pending += [(call.id, *row(call, item)) for item in items]
            self._details += [detail(call, direction, item) for item in items]
            if len(self._pending) >= self._limit:
                self.flush()

    def close(self) -> None:
        """Write pending rows, and later ones at once: a backward pass may come after the end."""
        self._periodic.close()
        self._limit = 1
        self.flush()

    def flush(self) -> None:
        """Write the pending rows."""
        with self._lock:
            lines, details = self._header + _lines(self._pending), "".join(self._details)
            if not self._pending:
                return
            self._pending, self._details, self._header = [], [], ""
            try:
                with self.path.open("a", newline="") as file:
                    file.write(lines)
                with self.path.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
                    file.write(details)
            except OSError as error:  # a full disk: the comparison goes on, the end reports it
                tool_errors.add("OpAutoCompare", str(self.path), error)


def _lines(rows: Sequence[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


_ZERO = f"{0.0:.9f}"


def row(call: Call, item: Item) -> tuple[object, ...]:
    """name, allclose, cosine_similarity, … error_info.

    Without a tolerance, atol is the error that was allowed where the difference is the largest.
    atol and rtol are empty where the standard has no bound for a single element.
    """
    verdict = item.verdict
    atol = verdict.bound if verdict.atol is None else verdict.atol
    has_bound = not (verdict.passed and verdict.rule in UNBOUNDED and verdict.max_abs)
    return (
        f"{call.name} {item.label}",
        verdict.passed,
        f"{verdict.cosine:.9f}",
        _number_text(verdict.max_abs),
        _number_text(verdict.max_rel),
        _number_text(atol) if has_bound else "",
        _number_text(verdict.rtol or 0.0) if has_bound else "",
        _error_info(item),
    )


def _number_text(value: float) -> str:
    return f"{value:.9g}" if value else _ZERO


def _error_info(item: Item) -> str:
    """The types of the result and of its reference where they differ, and the message."""
    verdict, reference = item.verdict, item.reference
    texts = [verdict.message] if verdict.message else []
    if reference is not None and verdict.dtype and name_of(reference) != verdict.dtype:
        texts.insert(0, f"Inconsistent dtypes: torch.{verdict.dtype} {reference}")
    return joined("; ", texts)


def detail(call: Call, direction: str, item: Item) -> str:
    """A result as a line of JSON."""
    verdict, site = item.verdict, call.site
    backward = "backward" in (call.direction, direction)
    fields = {
        "id": call.id,
        "op": call.name,
        "item": item.label,
        "direction": "backward" if backward else "forward",
        "step": call.step,
        "module": call.module,
        "site": f"{site.file}:{site.line}" if site is not None else "",
        "dtype": verdict.dtype,
        "shape": list(verdict.shape),
        "passed": bool(verdict.passed),
        "ratio": _number(verdict.ratio),
        "max_abs": _number(verdict.max_abs),
        "message": "" if verdict.passed else verdict.message,
    }
    return json.dumps(fields) + "\n"


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(value)


# The classic tables.


def device_rows(call: Call, result: Any) -> list[tuple[object, ...]]:
    """The arguments and the results of a call as they are on the device."""
    rows = terminal.argument_rows(f"{call.name} inputs", call.args, call.kwargs)
    return rows + terminal.tensor_rows(f"{call.name} outputs", result)


def show(recorded: RecordedCall, gradients: Gradients | None, items: list[Item]) -> list[Item]:
    """Print the verdicts on a call, or on its gradients. With OP_TOOLS_VERBOSE, print both sides,
    too, and return the items with one for each argument that has no verdict.
    """
    call = recorded.call
    if gradients is not None and not items:
        return items
    if not terminal.verbose():
        terminal.write(_items(call, items))
        return items
    run = recorded.reference()
    if gradients is None:
        items = with_values(call, items)
        arguments = iter(run.arguments)
        args, kwargs = mapped(
            (call.args, call.kwargs),
            lambda leaf: next(arguments) if isinstance(leaf, Tensor) else leaf,
        )
        rows = [*recorded.rows, *terminal.argument_rows(f"{call.name} inputs(cpu)", args, kwargs)]
        rows += terminal.tensor_rows(f"{call.name} outputs(cpu)", run.result)
    else:
        items = with_missing(call, gradients.inputs, items)
        rows = terminal.tensor_rows(f"{call.name} grad_output(cpu)", tuple(gradients.outputs))
        named = terminal.tensor_rows(f"{call.name} grad_inputs", tuple(gradients.inputs))
        for row, copy in zip(named, gradients.inputs, strict=True):
            cells = recorded.on_device.get(id(copy))
            rows.append(row if cells is None else (row[0], *cells))
        reference = tuple(run.gradients(gradients.outputs))
        rows += terminal.tensor_rows(f"{call.name} grad_inputs(cpu)", reference)
    given = {tensor.dtype for tensor in call.inputs}
    casts = {a: b for a, b in recorded.rerun.types.items() if a in given}
    header = f"{call.name} forward_id: {call.id}"
    header += f"    cpu_dtype_cast_info(from:to): {casts}" if casts else ""
    terminal.show_call(header, recorded.where or call, rows, _items(call, items))
    return items


def _items(call: Call, items: Sequence[Item]) -> str:
    return _grid([COLUMNS, *((str(call.id), *map(str, row(call, item))) for item in items)], 1)


def _grid(rows: Sequence[Sequence[str]], first: int = 0) -> str:
    """Lines of the file as the classic table, from a column on."""
    header, *body = [[*line[first:_EXTRA], *line[_EXTRA + 1 :]] for line in rows]
    name, numbers = header.index("name"), ("max_abs_diff", "max_relative_diff", "atol", "rtol")
    for line in body:
        line[name] = line[name].ljust(30)
        for at in map(header.index, numbers):
            line[at] = f"{float(line[at]):.9f}" if line[at] else ""
    return terminal.grid(header, body)


# The summary.


def show_summary(
    tool: OpAutoCompare, started: Started, failures: Sequence[Failure], path: Path
) -> None:
    """Print how much was compared, and the wrong results, the worst first."""
    wrong = len({(f.id, f.direction) for f in failures})
    text = _(
        "OpAutoCompare: {compared} {compared:call|calls} compared, {items} "
        "{items:result|results}, {wrong} wrong"
    )
    lines = [text.format(compared=tool.compared, items=tool.items, wrong=wrong)]
    if tool.items:
        lines.append(f"OpAutoCompare: {path}")
    lines += tool.samples()
    if tool.items and terminal.verbose():
        with path.open(newline="", encoding="utf-8") as file:
            terminal.write(_grid(list(csv.reader(file))))
    if failures:
        _show_failures(tool, failures, path)
    if tool.skipped:
        reasons: Counter[str] = Counter()
        for (reason, _operator), count in tool.skipped.items():
            reasons[reason] += count
        parts = joined("; ", [f"{count:,}: " + reason for reason, count in reasons.most_common()])
        text = _("OpAutoCompare: {total:,} {total:call|calls} skipped ({parts})")
        lines.append(text.format(total=reasons.total(), parts=parts))
    terminal.summary(tool, started, lines)


def _show_failures(tool: OpAutoCompare, failures: Sequence[Failure], path: Path) -> None:
    groups: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        where = failure.site.short if failure.site is not None else ""
        key = (failure.name, failure.item, failure.direction, where, failure.module)
        groups.setdefault(key, []).append(failure)
    ordered = sorted(groups.values(), key=lambda group: -max(f.verdict.ratio for f in group))
    worst = [max(group, key=lambda failure: failure.verdict.ratio) for group in ordered]
    rows = [
        (
            failure.name,
            f"{failure.item} {failure.direction}",
            failure.site.short if failure.site is not None else "",
            failure.module,
            str(len(group)),
            f"{failure.verdict.ratio:.3g}",
        )
        for failure, group in zip(worst[:SHOWN], ordered, strict=False)
    ]
    title = _("OpAutoCompare: wrong results, the worst first ({count} {count:place|places})")
    terminal.show_table(title.format(count=len(ordered)), SUMMARY, rows)
    found = problems(failures, tool.pattern, EXPLAINED)
    for problem in found.values():
        terminal.write()
        terminal.show_lines(problem.lines())
    try:
        write(path.with_suffix(".problems.json"), found)
    except OSError as error:  # a full disk: the verdicts are on the screen
        tool_errors.add("OpAutoCompare", str(path), error)
