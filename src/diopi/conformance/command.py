# SPDX-License-Identifier: Apache-2.0
"""`python -m diopi.conformance`: run the suite on a vendor, or one case of it."""

from __future__ import annotations

import difflib
import fnmatch
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from json import dumps, loads
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deeplink import cli
from deeplink import vendor as vendors
from deeplink.commands.common import STDOUT, write_json
from deeplink.console import console
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.judge.verdict import name_of
from deeplink.testing import device_rules
from diopi.conformance.cases.case import LOWERED, NOT_IMPLEMENTED, Group, Result, lowered_as, parse
from diopi.conformance.device_config import DeviceConfig
from diopi.conformance.execution.origin import Origin, Watch
from diopi.conformance.execution.subject import Subject, open_kernels, open_subject
from diopi.conformance.outside.spec import Spec, parse_maps
from diopi.conformance.planning import guests, plan, recipes
from diopi.conformance.results import badge, comparison, publish, report, results
from diopi.conformance.results import gaps as known_gaps
from diopi.conformance.results.results import Summary, Writer
from diopi.conformance.workers import store
from diopi.conformance.workers.pool import Pool
from diopi.conformance.workers.worker import run_one
from diopi.op import Op, all_ops

WHOLE = "full"  # the tier in which every gap has a matching case
SOURCES = "sources.json"  # checksums of the kernels of a run, by op
EVERY = 10.0  # seconds between two progress lines without a terminal


@dataclass(frozen=True)
class Request:
    """The cases to run, and the folder of the results."""

    vendor: str
    tier: str = "quick"
    ops: tuple[str, ...] = ()  # names or patterns; empty: all
    dtypes: tuple[str, ...] = ()
    jobs: int = 2
    limit: float = 60.0
    folder: Path = Path("conformance_results")
    resume: bool = False
    gaps: Path | None = None  # replaces the vendor's own
    config: DeviceConfig = DeviceConfig()  # noqa: RUF009 - frozen
    baselines: Path | None = None  # None: computed in this run
    kernels: Spec | None = None  # of someone else: `vendor` is their name
    shard: tuple[int, int] = (1, 1)  # the part of the groups to run, and the number of parts
    changed_only: bool = False  # keep the results of kernels with an unchanged source
    verbose: bool = False  # print a line for every finished op


def run(request: Request, out: Console) -> Summary:
    """Run the suite and write its reports."""
    before = report.origin_in(request.folder) if request.resume else None
    watch = Watch(before)
    if request.baselines is not None:
        store.Bundle(request.baselines).check()
    path = request.folder / "results.jsonl"
    earlier = results.read(path) if request.resume else []
    subject = _opened(request)
    _show_matching(subject, out)
    ops = [op for op in select(request.ops) if subject.has(op.name)]
    rules = device_rules.read(request.gaps or subject.gaps)
    tier = plan.of_chip(plan.tier_of(request.tier), rules.dtypes)
    groups = [
        group
        for group in (
            *plan.groups(tier, ops, request.dtypes),
            *guests.groups(tier, subject, request.ops, request.dtypes),
            *(problem.group for problem in subject.problems.values()),
        )
        if request.config.wants(group.op, group.dtype)
        and not rules.skip_reason(group.op, group.dtype)
        # a function of someone else does not check what torch checks before it calls a kernel
        and not (request.kernels and group.source.endswith(f"+{recipes.ERRORS}"))
    ]
    # expensive and cheap ones mixed, so that the estimated time is stable
    groups.sort(key=lambda group: (group.seed, str(group)))
    part, parts = request.shard
    groups = groups[part - 1 :: parts]
    if request.changed_only:
        same = _unchanged(request, subject)
        earlier = [row for row in results.read(path) if row.op in same]
        groups = [group for group in groups if group.op not in same]
        out.print(f"{len(same)} kernels are unchanged: their results are kept.")
    done = _by_group(result.case for result in earlier)
    found, until = list(earlier), ""
    with (
        Pool(*_pool(request), _options(request)) as pool,
        Writer(path, append=request.resume) as writer,
        _progress(pool, len(groups), out) as tell,
    ):
        if not request.resume:
            for result in earlier:
                writer.add(result)
        lines = Lines(groups, pool, out if request.verbose else None)
        try:
            for result in pool.run(groups, done):
                found.append(result)
                writer.add(result)
                tell(result)
                lines.add(result)
            lines.finish()
        except KeyboardInterrupt:  # partial results are worth a report
            until = f"group {pool.groups_done} of {len(groups)}"
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
            f"{len(lacking)} cases of {len(names)} ops are not implemented, as the vendor reports."
        )
    if len(ops) < len(select(request.ops)) and not request.kernels:
        out.print(f"{request.vendor} runs {len(ops)} of {len(select(request.ops))} ops.")
    machine = pool.machine or (before.machine if before else "unknown machine: no case was run")
    if request.kernels and not until:
        _write_sources(request, subject)
    return conclude(request, subject, found, watch.origin(machine, request.jobs, until), out)


def _pool(request: Request) -> tuple[str, str, int, float]:
    return request.vendor, request.tier, request.jobs, request.limit


def _by_group(cases: Iterable[str]) -> dict[Group, list[str]]:
    found: dict[Group, list[str]] = defaultdict(list)
    for case in cases:
        found[parse(case).group].append(case)
    return found


def _options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {"skips": [asdict(skip) for skip in request.config.calls]}
    if request.kernels:
        options["kernels"] = request.kernels.fields()
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
    """Raise DeeplinkError for a name that is no dtype of any operator, with the allowed names."""
    known = sorted({name_of(dtype) for op in all_ops().values() for dtype in op.dtypes})
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise DeeplinkError(
                _("there is no dtype {name!r}; allowed: {names}.").format(
                    name=name, names=", ".join(known)
                ),
                hint,
            )


def generate(request: Request, folder: Path, out: Console) -> int:
    """Create the baselines of a tier, or continue an interrupted run; return their number."""
    groups = list(plan.groups(plan.tier_of(request.tier), select(request.ops), request.dtypes))
    groups.sort(key=lambda group: group.seed)
    with (
        Pool("cpu", *_pool(request)[1:], {"mode": "generate"}) as pool,
        store.Writer(folder, request.resume) as writer,
        _progress(pool, len(groups), out) as tell,
    ):
        count = len(writer.done)
        for made in pool.run(groups, _by_group(writer.done)):
            if isinstance(made, store.Baseline):
                writer.add(made)
                count += 1
                tell(Result(made.case, "passed"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    out.print(f"{count} baselines in {folder}, {size / 2**20:.1f} MiB", soft_wrap=True)
    return count


def conclude(
    request: Request, subject: Subject, found: Sequence[Result], origin: Origin, out: Console
) -> Summary:
    """Write the reports of a run."""
    gaps = known_gaps.read(request.gaps or subject.gaps)
    known = {*all_ops(), *guests.names()}
    whole = not request.ops and not request.dtypes and request.tier == WHOLE
    complaints = known_gaps.complaints(gaps, found, known, whole and not origin.part)
    if origin.part:
        complaints.append(f"interrupted at {origin.part}; --resume goes on.")
    if all(result.status == "skipped" for result in found):
        reason = next((result.reason for result in found), "no op has cases here")
        complaints.append(f"no case was run: {reason}")
    unmatched = [str(one) for one in subject.matching.unmatched] if subject.matching else []
    summary = results.summarise(
        found, gaps, request.vendor, request.tier, complaints, origin, subject.words, unmatched
    )
    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    report.errors(folder / "error_report.csv", found, gaps, summary.words)
    report.junit(folder / "junit.xml", found, gaps, summary.words)
    report.summary_json(folder / "summary.json", summary)
    files = ["error_report.csv", "junit.xml", "summary.json"]
    if summary.operators:
        files += badge.write(folder, summary)
    report.show(summary, found, gaps, out)
    out.print(f"Reports: {folder}/{', '.join(files)}", soft_wrap=True)
    return summary


def select(names: Sequence[str]) -> list[Op]:
    """Select ops by names or patterns; an old name of a function counts too."""
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
            f"no op matches {', '.join(names)}.", hint="`deeplink conformance --list` shows them."
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
    """Reports the progress of a run: a bar on a terminal, else a line at intervals."""

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


def _unchanged(request: Request, subject: Subject) -> set[str]:
    """Return the ops whose kernels have the source of the run in the folder."""
    path = request.folder / SOURCES
    before = loads(path.read_text("utf-8")) if path.is_file() else {}
    if before.get("run") != _run_of(request):
        return set()
    kernels = before["kernels"]
    return {op for op, digest in subject.sources().items() if kernels.get(op) == digest}


def _write_sources(request: Request, subject: Subject) -> None:
    found = {"run": _run_of(request), "kernels": subject.sources()}
    (request.folder / SOURCES).write_text(dumps(found, indent=1) + "\n", "utf-8")


def _run_of(request: Request) -> list[str]:
    """Return what determines the cases of a run, except the kernels."""
    words = request.kernels.words if request.kernels else ""
    part = "/".join(map(str, request.shard))
    return [request.tier, *request.ops, "", *request.dtypes, "", part, words]


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise DeeplinkError(f"--shard {text!r} is not I/N.", "as --shard 1/4 to --shard 4/4.")


def _opened(request: Request) -> Subject:
    if request.kernels:
        return guests.adopt(open_kernels(request.kernels))
    return open_subject(request.vendor, runs=False)


def _show_matching(subject: Subject, out: Console) -> None:
    """Print which function is the kernel of which operator, and which of none."""
    if (found := subject.matching) is None:
        return
    rows = [f"{one.function} is {name}" for name, one in {**found.kernels, **found.forms}.items()]
    rows += [f"{subject.watch.names[op]} is {op}" for op in subject.fused if subject.watch]
    for problem in subject.problems.values():
        shrunk = f", sizes divided by {problem.scale}" if problem.scale > 1 else ""
        rows.append(f"ModelNew of {problem.name.removeprefix('problem.')}{shrunk}")
    if rows:
        out.print(f"{len(rows)} kernels on {subject.device}: {', '.join(rows)}", soft_wrap=True)
    for line in found.restricted:
        out.print(f"  restricted by its parameters: {line}", soft_wrap=True)
    for text in found.unmatched:
        out.print(f"  not matched: {text}", soft_wrap=True)
    if found.unmatched:
        out.print("  name them with --map function=operator.")
    if not rows and not subject.kernels:
        raise DeeplinkError(
            "no function is the kernel of an operator.",
            "--map function=operator; `deeplink conformance --list` shows the operators.",
        )


def one(text: str, request: Request, out: Console) -> Result:
    """Run one case in this process."""
    subject = _opened(request) if request.kernels else open_subject(request.vendor)
    result = run_one(parse(text), subject)
    grade = f", grade {result.grade}" if result.grade else ""
    out.print(f"{result.case}: {result.status}{grade} {result.reason}", soft_wrap=True)
    for finding in result.findings:
        out.print(f"  {finding.grade} {finding.check}: {finding.message}", soft_wrap=True)
    if result.checks:
        out.print(f"  checks made: {', '.join(result.checks)}", soft_wrap=True)
    return result


def conformance(
    *,
    vendor: str,
    tier: str,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    case: str,
    jobs: int,
    limit: float,
    folder: Path,
    resume: bool,
    gaps: Path | None,
    generate_to: Path | None,
    baselines: Path | None,
    publish_to: Path | None,
    listed: bool,
    json: str,
    kernels: str = "",
    device: str = "",
    interpret: bool = False,
    maps: tuple[str, ...] = (),
    allow_torch: bool = False,
    shard: str = "",
    changed_only: bool = False,
    compared: tuple[Path, ...] = (),
) -> int:
    """Run `deeplink conformance`; return 0 when every case passed or is a known gap."""
    out = console(stderr=json == STDOUT)
    if tier not in plan.TIERS:
        near = difflib.get_close_matches(tier, plan.TIERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "the default is quick."
        raise DeeplinkError(
            _("no tier {tier!r}; allowed: {names}.").format(tier=tier, names=", ".join(plan.TIERS)),
            hint,
        )
    if listed:
        _list(ops, json, out)
        return 0
    if compared:
        return _compare(compared, json, out)
    if publish_to:
        return _publish(vendor, gaps, folder, publish_to, out)
    spec = None
    if kernels:
        spec = Spec(kernels, device, interpret, parse_maps(maps), allow_torch)
        vendor = spec.name
    elif device or interpret or maps or allow_torch or changed_only:
        raise DeeplinkError(
            "--device, --interpret, --map, --allow-torch and --changed-only belong to --kernels.",
            "deeplink conformance --kernels SPEC judges kernels of any source.",
        )
    request = Request(
        vendor, tier, ops, dtypes, jobs, limit, folder, resume, gaps, baselines=baselines,
        kernels=spec, shard=_shard(shard or "1/1"), changed_only=changed_only,
    )  # fmt: skip
    if case:
        return int(one(case, request, out).bad)
    check_dtypes(dtypes)
    if generate_to:
        return int(not generate(request, generate_to, out))
    passed = run(request, out).passed
    if json:
        write_json(loads((folder / "summary.json").read_text("utf-8")), json)
    return int(not passed)


def _compare(folders: Sequence[Path], json: str, out: Console) -> int:
    """Compare two result folders; 1 when a case became wrong."""
    if len(folders) != 2:
        raise DeeplinkError(
            f"--compare has {len(folders)} folders, not 2.", "as --compare results_main results."
        )
    found = comparison.compare(*folders)
    comparison.show(found, out)
    if json:
        write_json(found.fields(), json)
    return int(bool(found.regressions))


def _list(ops: Sequence[str], json: str, out: Console) -> None:
    rows: list[tuple[str, str, tuple[str, ...]]] = [
        (op.name, op.kind, tuple(op.legacy)) for op in select(ops)
    ]
    for name in guests.names(ops):
        rows.append((name, guests.FAMILY, ()))
    if json:
        names = ("name", "kind", "legacy")
        write_json([dict(zip(names, row, strict=True)) for row in rows], json)
        return
    for name, kind, legacy in rows:
        out.print(f"{name:32} {kind:15} {', '.join(legacy)}".rstrip(), soft_wrap=True)


def _publish(vendor: str, gaps: Path | None, folder: Path, to: Path, out: Console) -> int:
    """Publish a run of another machine; the vendor need not be available on this one."""
    path = folder / "summary.json"
    made = loads(path.read_text("utf-8")) if path.is_file() else {}
    found = None if made.get("operators") else vendors.find(vendor)
    record = found.vendor if found else None
    known = known_gaps.read(gaps or (record.gaps_file() if record else None))
    for path in publish.publish(folder, to, known):
        out.print(f"{path}, {path.stat().st_size / 1024:.0f} KiB", soft_wrap=True)
    return 0


def main(line: Sequence[str] | None = None) -> int:
    """Run `python -m diopi.conformance`, the equivalent of `deeplink conformance`."""
    words = sys.argv[1:] if line is None else list(line)
    return cli.status(["conformance", *words])
