"""`python -m diopi.conformance`: run the suite on a vendor, or one case of it."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deeplink import device_rules
from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError
from deeplink.judge.verdict import name_of
from deeplink.table import console
from diopi.conformance import gaps as known_gaps
from diopi.conformance import guests, page, plan, publish, report, results, store
from diopi.conformance.case import LOWERED, NOT_IMPLEMENTED, Group, Result, lowered_as, parse
from diopi.conformance.device_config import DeviceConfig
from diopi.conformance.origin import Origin, Watch
from diopi.conformance.pool import Pool
from diopi.conformance.results import Summary, Writer
from diopi.conformance.subject import Subject, open_subject
from diopi.conformance.worker import run_one
from diopi.op import Op, all_ops

WHOLE = "full"  # the tier in which every gap has a case that shows it
EVERY = 10.0  # seconds between two lines of progress where there is no terminal


@dataclass(frozen=True)
class Request:
    """What is to be run, and where the results go."""

    vendor: str
    tier: str = "quick"
    ops: tuple[str, ...] = ()  # names or patterns; none: all
    dtypes: tuple[str, ...] = ()
    jobs: int = 2
    limit: float = 60.0
    folder: Path = Path("conformance_results")
    resume: bool = False
    gaps: Path | None = None  # instead of the vendor's own
    config: DeviceConfig = DeviceConfig()  # noqa: RUF009 - frozen
    baselines: Path | None = None  # None: computed anew
    verbose: bool = False  # a line for every op that is finished


def run(request: Request, out: Console) -> Summary:
    """Runs the suite and writes its reports."""
    before = report.origin_in(request.folder) if request.resume else None
    watch = Watch(before)
    if request.baselines is not None:
        store.Bundle(request.baselines).check()
    path = request.folder / "results.jsonl"
    earlier = results.read(path) if request.resume else []
    subject = open_subject(request.vendor, runs=False)
    ops = [op for op in select(request.ops) if subject.has(op.name)]
    rules = device_rules.read(request.gaps or subject.gaps)
    tier = plan.of_chip(plan.tier_of(request.tier), rules.dtypes)
    groups = [
        group
        for group in (
            *plan.groups(tier, ops, request.dtypes),
            *guests.groups(tier, subject, request.ops, request.dtypes),
        )
        if request.config.wants(group.op, group.dtype) and not rules.left_out(group.op, group.dtype)
    ]
    groups.sort(key=lambda group: group.seed)  # dear and cheap ones mixed: the time left is steady
    done = _by_group(result.case for result in earlier)
    found, part = list(earlier), ""
    with (
        Pool(*_pool(request), _options(request)) as pool,
        Writer(path, append=request.resume) as writer,
        _progress(pool, len(groups), out) as tell,
    ):
        lines = Lines(groups, pool, out if request.verbose else None)
        try:
            for result in pool.run(groups, done):
                found.append(result)
                writer.add(result)
                tell(result)
                lines.add(result)
            lines.finish()
        except KeyboardInterrupt:  # what was found until then is worth a report
            part = f"group {pool.groups_done} of {len(groups)}"
    if alone := sum(store.NO_BASELINE in result.reason for result in found):
        out.print(f"{alone} cases had no baseline of the same arguments: computed here.")
    if lowered := [result for result in found if LOWERED in result.reason]:
        how = sorted({lowered_as(result) for result in lowered})
        out.print(
            f"{len(lowered)} cases of {len({result.op for result in lowered})} ops were judged by "
            f"the bound of a coarser type: {'; '.join(how)}."
        )
    if lacking := [result for result in found if result.reason.startswith(NOT_IMPLEMENTED)]:
        names = {result.op for result in lacking}
        out.print(
            f"{len(lacking)} cases of {len(names)} ops, as the vendor says, are not implemented."
        )
    if len(ops) < len(select(request.ops)):
        out.print(f"{request.vendor} runs {len(ops)} of {len(select(request.ops))} ops.")
    machine = pool.machine or (before.machine if before else "unknown machine: no case was run")
    return conclude(request, subject, found, watch.origin(machine, request.jobs, part), out)


def _pool(request: Request) -> tuple[str, str, int, float]:
    return request.vendor, request.tier, request.jobs, request.limit


def _by_group(cases: Iterable[str]) -> dict[Group, list[str]]:
    found: dict[Group, list[str]] = defaultdict(list)
    for case in cases:
        found[parse(case).group].append(case)
    return found


def _options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {"skips": [asdict(skip) for skip in request.config.calls]}
    return options | ({"baselines": str(request.baselines)} if request.baselines else {})


class Lines:
    """Prints the published suite's line for every op, when its last group is finished."""

    def __init__(self, groups: Sequence[Group], pool: Pool, out: Console | None) -> None:
        self._left = Counter(group.op for group in groups)
        self._pool, self._out = pool, out
        self._ran: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()
        self._finished = 0

    def add(self, result: Result) -> None:
        """Count a result, after printing the ops that were finished before it."""
        self.finish()
        self._ran[result.op] += result.status != "skipped"
        self._bad[result.op] += result.bad

    def finish(self) -> None:
        """Print the ops whose groups are all finished."""
        for group in self._pool.finished[self._finished :]:
            self._left[group.op] -= 1
            if not self._left[group.op] and self._ran[group.op] and self._out is not None:
                bad = self._bad[group.op]
                word = f"failed: {bad} of {self._ran[group.op]} cases" if bad else "succeed"
                now = datetime.now()
                stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
                line = f"{stamp} - DIOPI-Test - INFO - Run diopi_functions.{group.op} {word}"
                self._out.print(line, soft_wrap=True, highlight=False)
        self._finished = len(self._pool.finished)


def check_dtypes(names: Sequence[str]) -> None:
    """Raise for a name that is no dtype of any operator; the message has those that are."""
    known = sorted({name_of(dtype) for op in all_ops().values() for dtype in op.dtypes})
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise DeeplinkError(f"there is no dtype {name!r}; allowed: {', '.join(known)}.", hint)


def generate(request: Request, folder: Path, out: Console) -> int:
    """Makes the baselines of a tier, or those that an interrupted run left; how many there are."""
    groups = list(plan.groups(plan.tier_of(request.tier), select(request.ops), request.dtypes))
    groups.sort(key=lambda group: group.seed)
    with (
        Pool("cpu", *_pool(request)[1:], {"mode": "generate"}) as pool,
        store.Writer(folder, request.resume) as writer,
        _progress(pool, len(groups), out) as tell,
    ):
        count = len(writer.done)
        for made in pool.run(groups, _by_group(writer.done)):
            if isinstance(made, store.Made):
                writer.add(made)
                count += 1
                tell(Result(made.case, "passed"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    out.print(f"{count} baselines in {folder}, {size / 2**20:.1f} MiB", soft_wrap=True)
    return count


def conclude(
    request: Request, subject: Subject, found: Sequence[Result], origin: Origin, out: Console
) -> Summary:
    """The reports of a run."""
    gaps = known_gaps.read(request.gaps or subject.gaps)
    known = {*all_ops(), *guests.names()}
    whole = not request.ops and not request.dtypes and request.tier == WHOLE
    complaints = known_gaps.complaints(gaps, found, known, whole and not origin.part)
    if origin.part:
        complaints.append(f"interrupted at {origin.part}; --resume goes on.")
    if all(result.status == "skipped" for result in found):
        reason = next((result.reason for result in found), "no op has cases here")
        complaints.append(f"nothing was run: {reason}")
    summary = results.summarise(found, gaps, request.vendor, request.tier, complaints, origin)
    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    report.errors(folder / "error_report.csv", found, gaps, request.vendor)
    report.junit(folder / "junit.xml", found, gaps, request.vendor)
    report.summary_json(folder / "summary.json", summary)
    page.write(folder / "report.html", summary, found, gaps)
    report.show(summary, found, gaps, out)
    out.print(f"Reports: {folder}/report.html, error_report.csv, junit.xml, summary.json")
    return summary


def select(names: Sequence[str]) -> list[Op]:
    """The interface's ops of some names or patterns; an old name of a function counts too."""
    if not names:
        return list(all_ops().values())
    found = {
        op.name: op
        for op in all_ops().values()
        for name in names
        if fnmatch.fnmatch(op.name, name) or name in op.legacy
    }
    if not found and not guests.names(names):
        raise DeeplinkError(
            f"no op matches {', '.join(names)}.", hint="see `python -m diopi.conformance --list`."
        )
    return list(found.values())


@contextmanager
def _progress(pool: Pool, total: int, out: Console) -> Iterator[Teller]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bar:
        yield Teller(pool, total, out, bar)


class Teller:
    """Says how far a run is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, pool: Pool, total: int, out: Console, bar: Progress) -> None:
        self._pool, self._total, self._out, self._bar = pool, total, out, bar
        self._task = bar.add_task("starting", total=total)
        self._started = self._last = time.monotonic()
        self._cases = self._bad = 0

    def __call__(self, result: Result) -> None:
        self._cases += result.status != "skipped"
        self._bad += result.bad
        done = self._pool.groups_done
        self._bar.update(
            self._task, completed=done, description=f"{self._cases} cases, {self._bad} wrong"
        )
        now = time.monotonic()
        if not self._out.is_terminal and now - self._last > EVERY:
            self._last = now
            left = (now - self._started) / max(1, done) * (self._total - done)
            self._out.print(
                f"{self._cases} cases, {self._bad} wrong; group {done} of {self._total}, "
                f"about {left:.0f} s left"
            )


def one(text: str, vendor: str, out: Console) -> Result:
    """One case, in this process."""
    result = run_one(parse(text), open_subject(vendor))
    grade = f", grade {result.grade}" if result.grade else ""
    out.print(f"{result.case}: {result.status}{grade} {result.reason}", soft_wrap=True)
    for finding in result.findings:
        out.print(f"  {finding.grade} {finding.check}: {finding.message}", soft_wrap=True)
    if result.checks:
        out.print(f"  checks made: {', '.join(result.checks)}", soft_wrap=True)
    return result


def main(line: Sequence[str] | None = None) -> int:
    """The exit code: 0 when everything passed or is a known gap."""
    given = _parser().parse_args(line)
    out = console()
    if given.list:
        for op in select(given.ops):
            out.print(f"{op.name:32} {op.kind:15} {', '.join(op.legacy)}", soft_wrap=True)
        for name in guests.names(given.ops):
            out.print(f"{name:32} {guests.FAMILY}", soft_wrap=True)
        return 0
    try:
        if given.publish:
            return _publish(given, out)
        if given.case:
            return int(one(given.case, given.vendor, out).bad)
        check_dtypes(given.dtypes)
        request = Request(
            given.vendor, given.tier, tuple(given.ops), tuple(given.dtypes), given.jobs,
            given.limit, given.results, given.resume, given.gaps,
            baselines=None if given.recompute else given.baselines,
        )  # fmt: skip
        if given.generate:
            return int(not generate(request, given.generate, out))
        return int(not run(request, out).passed)
    except DeeplinkError as error:
        console(stderr=True).print(str(error), soft_wrap=True)
        return 2


def _publish(given: argparse.Namespace, out: Console) -> int:
    """Of a vendor that cannot be opened here, a run elsewhere can still be published."""
    found = vendors.find(given.vendor)
    record = found.vendor if found else None
    gaps = known_gaps.read(given.gaps or (record.gaps_file() if record else None))
    for path in publish.publish(given.results, given.publish, gaps):
        out.print(f"{path}, {path.stat().st_size / 1024:.0f} KiB", soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m diopi.conformance",
        description="Check the operators of a vendor, one report for all of them.",
    )
    add = parser.add_argument
    add("--vendor", default="reference", help="a vendor's name, or module:attribute of kernels")
    add("--tier", choices=list(plan.TIERS), default="quick", help="how many cases")
    add("--ops", nargs="*", default=[], metavar="OP", help="these only; patterns, as conv*")
    add("--dtypes", nargs="*", default=[], metavar="DTYPE", help="these only, as float32")
    add("--case", metavar="ID", help="one case by its id, in this process")
    add("--jobs", "-j", type=int, default=2, help="processes at a time")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="for one case")
    add("--results", type=Path, default=Path("conformance_results"), help="where reports go")
    add("--resume", action="store_true", help="go on with an interrupted run")
    add("--gaps", type=Path, metavar="FILE", help="instead of the vendor's own gaps.toml")
    add("--generate", type=Path, metavar="DIR", help="make the baselines, and run nothing")
    add("--baselines", type=Path, metavar="DIR", help="compare with these, made elsewhere")
    add("--recompute", action="store_true", help="without baselines: computed here (the default)")
    add("--publish", type=Path, metavar="DIR", help="a page and a table of --results, to be kept")
    add("--list", action="store_true", help="show the ops and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
