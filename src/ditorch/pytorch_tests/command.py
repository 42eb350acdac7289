# SPDX-License-Identifier: Apache-2.0
"""`deeplink pytorch-tests`: run PyTorch's own tests on the device, show and compare the results."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deeplink import vendor
from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from deeplink.testing.workers import spare_the_cpu
from ditorch import session
from ditorch.pytorch_tests import device_config, results
from ditorch.pytorch_tests.builtin import SUITES
from ditorch.pytorch_tests.device_config import DeviceConfig, skipped
from ditorch.pytorch_tests.results import RESULTS, Row, Test
from ditorch.pytorch_tests.sources import Source, files_of, selected
from ditorch.pytorch_tests.workers import Pool

SHOWN = 20  # rows of a printed list; the CSV has all of them
EVERY = 10.0  # seconds between two progress lines without a terminal


def pytorch_tests(
    *,
    suites: str,
    pytorch: Path | None,
    files: str,
    only: str,
    dtypes: str,
    output: Path,
    jobs: int,
    time_limit: float,
    resume: bool,
    overwrite: bool,
    no_run: bool,
    config: Path | None,
    old: Path | None,
    device: str,
) -> int:
    """Run the tests, show the results, compare them with `old`, and return the exit code."""
    before = results.read(old) if old else None
    if not no_run:
        sources = _sources(suites, pytorch, _split_words(files))
        _check_pattern(only)
        _prepare_output(output, resume, overwrite)
        with vendor.using(device):
            session.activate()
            rules = device_config.read(config or vendor.choose().vendor.gaps_file())
            chosen = _split_words(dtypes) or rules.dtypes
            _run(sources, only, chosen, output, jobs, time_limit, resume, rules)
    try:
        rows = results.read(output)
    except OSError as error:
        raise DeeplinkError(
            f"{output} cannot be read: {error.strerror or error}.",
            "run the tests first: deeplink pytorch-tests -o FILE",
        ) from None
    return 1 if _show(rows, before, output) else 0


def _check_pattern(only: str) -> None:
    try:
        re.compile(only)
    except re.error as error:
        raise DeeplinkError(
            f"--only {only!r} is not a regular expression: {error}.",
            "for example: --only 'forward_(add|mul)_'",
        ) from None


def _split_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _sources(suites: str, pytorch: Path | None, files: Sequence[str]) -> list[Source]:
    if pytorch is not None:
        return files_of(pytorch, files)
    if files:
        raise DeeplinkError(
            "--files needs --pytorch, the checkout that has them.",
            "for example: --pytorch ~/pytorch/test --files test_torch.py",
        )
    unknown = [name for name in _split_words(suites) if name not in SUITES]
    if unknown:
        near = difflib.get_close_matches(unknown[0], SUITES, n=1)
        raise DeeplinkError(
            f"no suite {unknown[0]!r}; there are: {', '.join(SUITES)}.",
            f"did you mean {near[0]!r}?" if near else "",
        )
    return [Source(name) for name in _split_words(suites)]


def _prepare_output(output: Path, resume: bool, overwrite: bool) -> None:
    if overwrite:
        output.unlink(missing_ok=True)
    if output.exists() and not resume:
        raise DeeplinkError(
            f"{output} holds the rows of an earlier run.",
            "--resume continues it, --overwrite deletes its rows, --output names another file.",
        )


# Run.


def _run(
    sources: Sequence[Source],
    only: str,
    dtypes: Sequence[str],
    output: Path,
    jobs: int,
    limit: float,
    resume: bool,
    rules: DeviceConfig,
) -> None:
    """Run the selected tests that have no row yet; each row is written when it is complete."""
    done = {row.key for row in results.read(output)} if resume and output.exists() else set()
    left_out: list[Row] = []
    known: list[Test] = []

    def wanted(tests: list[Test]) -> list[Test]:
        known.extend(tests)
        new = [test for test in selected(tests, only, dtypes) if test.key not in done]
        skips = {test: skip for test in new if (skip := rules.skip(test)) is not None}
        left_out.extend(skipped(test, skip) for test, skip in skips.items())
        return [test for test in new if test not in skips]

    out = console(stderr=True)
    if said := spare_the_cpu():
        out.print(said, style="yellow", soft_wrap=True)
    out.print(f"loading {', '.join(source.name for source in sources)} …", soft_wrap=True)
    with (
        Pool(jobs, limit, tolerances=rules.all_tolerances()) as pool,
        results.Writer(output, append=resume) as writer,
        _progress(out, pool) as tell,
    ):
        for row in pool.run(sources, wanted):
            writer.add(row)
            tell.add(row)
        for row in left_out:
            writer.add(row)
            tell.add(row)
    for pattern in rules.unmatched(known):
        out.print(f"the device's rules: {pattern!r} finds no test here", style="yellow")


class _Tally:
    """Progress of a run: periodic lines, or a bar on a terminal."""

    def __init__(self, out: Console, pool: Pool, bar: Progress | None) -> None:
        self.out, self.pool, self.bar = out, pool, bar
        self.counts = dict.fromkeys(RESULTS, 0)
        self._told = time.monotonic()
        self._task = bar.add_task("", total=None) if bar else None

    def add(self, row: Row) -> None:
        self.counts[row.result] += 1
        if row.bad:
            text = f"{row.result}  {row}  [{row.cause}: {row.reason}] {row.message[:160]}"
            self.out.print(text, style="red", soft_wrap=True)
        if self.bar is not None and self._task is not None:
            total = self.pool.total
            self.bar.update(self._task, advance=1, total=total, description=self.text())
        elif time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self.out.print(f"{sum(self.counts.values())} of {self.pool.total}: {self.text()}")

    def text(self) -> str:
        counts = (f"{count} {name}" for name, count in self.counts.items() if count)
        return ", ".join(counts) or "nothing to run"


@contextmanager
def _progress(out: Console, pool: Pool) -> Iterator[_Tally]:
    if not out.is_terminal:
        tally = _Tally(out, pool, None)
        yield tally
        out.print(f"ran {sum(tally.counts.values())}: {tally.text()}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=out) as bar:
        yield _Tally(out, pool, bar)


# Show.


def _show(rows: Sequence[Row], before: Sequence[Row] | None, output: Path) -> bool:
    """Print the summary and the changes; return whether a test failed."""
    out = console()
    lines = results.summary(rows)
    columns = ("file", "rows of", *RESULTS, "chip", "shim")
    cells = [
        (
            line.file,
            line.device,
            *(str(line.counts.get(name, 0)) for name in RESULTS),
            *(str(line.causes.get(name, 0)) for name in ("chip", "shim")),
        )
        for line in lines
    ]
    for about in ("device", "cpu"):
        own = [cell for cell in cells if cell[1] == about]
        if own:
            sums = [str(sum(int(cell[at]) for cell in own)) for at in range(2, len(columns))]
            cells.append(("total", about, *sums))
    out.print(table("PyTorch's own tests", columns, cells))
    _show_reasons(out, rows)
    out.print(f"{len(rows)} rows in {output}", soft_wrap=True)
    if before is None:
        return any(row.bad for row in rows)
    changed = results.diff(before, rows)
    _list(out, "newly failing", changed.newly_failing, "red")
    _list(out, "newly passing", changed.newly_passing, "green")
    _list(out, "disappeared", changed.disappeared, "yellow")
    return bool(changed.newly_failing)


def _show_reasons(out: Console, rows: Iterable[Row]) -> None:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.bad:
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
