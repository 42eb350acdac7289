# SPDX-License-Identifier: Apache-2.0
"""`deeplink pytorch-tests`: run PyTorch's own tests on the device, show and compare the results."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deeplink import vendor
from deeplink.console import console
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run.run_folder import LATEST, point
from deeplink.testing.workers import spare_the_cpu
from deeplink.vendor import Vendor
from ditorch.pytorch_tests import device_config, export, pairs, patterns, results, show, summary
from ditorch.pytorch_tests.builtin import SUITES
from ditorch.pytorch_tests.device_config import DeviceConfig, skipped
from ditorch.pytorch_tests.results import DEVICE, RESULTS, Row, Test
from ditorch.pytorch_tests.sources import Source, files_of, how_to_get, selected, version_problem
from ditorch.pytorch_tests.workers import Pool

EVERY = 10.0  # seconds between two progress lines without a terminal
FOLDER, ROWS = Path("pytorch_tests_results"), "rows.csv"


@dataclass(frozen=True)
class Selection:
    """Which tests run, and how."""

    sources: Sequence[Source]
    only: str
    dtypes: Sequence[str]
    jobs: int
    limit: float
    cpu: str  # which tests run on the plain CPU as well: all, failed or none

    def __str__(self) -> str:
        dtypes = f"dtypes {', '.join(self.dtypes)}" if self.dtypes else ""
        cpu = f"on the CPU: {self.cpu}" if self.cpu != "all" else ""
        return "; ".join(part for part in (self.only, dtypes, cpu) if part)


def pytorch_tests(
    *,
    suites: str,
    sources: Path | None,
    files: Sequence[str],
    only: str,
    dtypes: str,
    cuda: bool,
    cpu: str,
    every_class: bool,
    output: Path | None,
    jobs: int,
    time_limit: float,
    resume: bool,
    overwrite: bool,
    no_run: bool,
    config: Path | None,
    old: Path | None,
    export_config: Path | None,
    device: str,
) -> int:
    """Run the tests, show the results, compare them with `old`, and return the exit code."""
    with vendor.using(device):
        chosen = vendor.choose(device or None).vendor
        rules = device_config.read(config or chosen.gaps_file())
        before = results.read(old) if old else None
        if no_run or export_config is not None:
            rows_file = _rows_file(output, earlier=True)
        if export_config is not None:
            count = export.write(export_config, rules, _read(rows_file), chosen.device)
            console().print(f"{count} tests that are left out: {export_config}", soft_wrap=True)
            return 0
        selection = None
        if not no_run:
            found = _sources(suites, sources, _split_words(",".join(files)))
            own = [replace(each, every_class=every_class or cuda) for each in found]
            if sources is not None and not cuda:
                own = [replace(each, side="device") for each in own]
            patterns.check(only)
            rows_file = _rows_file(output, earlier=resume)
            _prepare_output(rows_file, resume, overwrite)
            types = _split_words(dtypes) or rules.dtypes
            selection = Selection(own, only, types, jobs, time_limit, cpu)
            _run(selection, chosen, rules, rows_file)
        return _finish(rows_file, before, rules, chosen, selection)


def _finish(
    path: Path,
    before: Sequence[Row] | None,
    rules: DeviceConfig,
    chosen: Vendor,
    selection: Selection | None,
) -> int:
    """Show the rows, and write their summary next to them; return the exit code."""
    rows = _read(path)
    found = pairs.pairs(rows, rules, chosen.device)
    told = None if selection is None else str(selection)
    summary.write(path.with_suffix(".json"), found, chosen, told)
    bad = show.show(rows, found, rules, path)
    return int(show.show_changes(before, rows) if before is not None else bad)


def _read(path: Path) -> list[Row]:
    try:
        return results.read(path)
    except OSError as error:
        raise DeeplinkError(
            _("{path} cannot be read: {strerror}.").format(
                path=path, strerror=error.strerror or error
            ),
            _("run the tests first: deeplink pytorch-tests -o FILE"),
        ) from None


def _split_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _sources(suites: str, checkout: Path | None, files: Sequence[str]) -> list[Source]:
    if checkout is not None:
        return files_of(checkout, files)
    if files:
        raise DeeplinkError(_("--files needs --sources, the checkout that has them."), how_to_get())
    unknown = [name for name in _split_words(suites) if name not in SUITES]
    if unknown:
        near = difflib.get_close_matches(unknown[0], SUITES, n=1)
        raise DeeplinkError(
            _("no suite {unknown!r}; there are: {names}.").format(
                unknown=unknown[0], names=", ".join(SUITES)
            ),
            _("did you mean {near!r}?").format(near=near[0]) if near else "",
        )
    return [Source(name) for name in _split_words(suites)]


def _rows_file(output: Path | None, earlier: bool) -> Path:
    """Return the requested CSV, that of the latest run, or one in a new folder."""
    if output is not None:
        return output
    latest = FOLDER / LATEST / ROWS
    if earlier and latest.exists():
        return latest
    folder = FOLDER / f"{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"
    folder.mkdir(parents=True, exist_ok=True)
    point(FOLDER / LATEST, folder.name)
    return folder / ROWS


def _prepare_output(output: Path, resume: bool, overwrite: bool) -> None:
    if overwrite:
        output.unlink(missing_ok=True)
    if output.exists() and not resume:
        raise DeeplinkError(
            _("{output} holds the rows of an earlier run.").format(output=output),
            _("--resume continues it, --overwrite deletes its rows, --output names another file."),
        )


# Run.


def _run(chosen: Selection, own: Vendor, rules: DeviceConfig, output: Path) -> None:
    """Run the selected tests that have no row yet; each row is written when it is complete."""
    earlier = results.read(output) if output.exists() else []
    run = _Run(chosen, rules, {row.key for row in earlier}, list(earlier))
    out = console(stderr=True)
    if said := spare_the_cpu():
        out.print(said, style="yellow", soft_wrap=True)
    if chosen.sources[0].root and (said := version_problem(Path(chosen.sources[0].root))):
        out.print(said, style="yellow", soft_wrap=True)
    names = ", ".join(source.name for source in chosen.sources)
    out.print(f"loading {names} …", soft_wrap=True)
    with (
        Pool(own, chosen.jobs, chosen.limit, tolerances=rules.all_tolerances()) as pool,
        results.Writer(output, append=bool(earlier)) as writer,
        _progress(out, pool) as tell,
    ):
        sides = [(chosen.sources, run.wanted), (run.on_the_cpu(), run.wanted_on_the_cpu(own))]
        for sources, select in sides:
            for row in pool.run(sources, select):
                run.rows.append(row)
                writer.add(row)
                tell.add(row)
        for row in run.left_out:
            writer.add(row)
            tell.add(row)
    for sentence in run.unused():
        out.print(sentence, style="yellow", soft_wrap=True)


class _Run:
    """The state of a run: which tests it knows, which it left out, and the rows so far."""

    def __init__(
        self, chosen: Selection, rules: DeviceConfig, done: set[results.Key], rows: list[Row]
    ) -> None:
        self.chosen, self.rules, self.done, self.rows = chosen, rules, done, rows
        self.left_out: list[Row] = []
        self.known: list[Test] = []

    def wanted(self, tests: list[Test]) -> list[Test]:
        """Select the tests of a source that have to run on the device."""
        self.known.extend(tests)
        new = self._new(tests)
        skips = {test: skip for test in new if (skip := self.rules.skip(test)) is not None}
        self.left_out.extend(skipped(test, skip) for test, skip in skips.items())
        return [test for test in new if test not in skips]

    def on_the_cpu(self) -> list[Source]:
        """Return the sources for the plain CPU."""
        if self.chosen.cpu == "none":
            return []
        return [replace(s, side="cpu") for s in self.chosen.sources if s.root and not s.for_example]

    def wanted_on_the_cpu(self, own: Vendor) -> Callable[[list[Test]], list[Test]]:
        """Return what selects the tests that the plain CPU runs: those that the device ran."""

        def select(tests: list[Test]) -> list[Test]:
            ran = {
                pairs.twin(row.key, own.device)
                for row in self.rows
                if row.device == DEVICE and row.result != "skipped"
                and (self.chosen.cpu == "all" or row.bad)
            }  # fmt: skip
            return [
                t for t in tests if t.key not in self.done and pairs.twin(t.key, own.device) in ran
            ]

        return select

    def unused(self) -> Iterator[str]:
        """Yield sentences about patterns that match no test."""
        for pattern in self.rules.unmatched(self.known):
            yield f"the device's rules: {pattern!r} finds no test here"
        if self.chosen.only:
            yield from patterns.unused(self.chosen.only, map(str, self.known))

    def _new(self, tests: Iterable[Test]) -> list[Test]:
        found = selected(tests, self.chosen.only, self.chosen.dtypes)
        return [test for test in found if test.key not in self.done]


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
