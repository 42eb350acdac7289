# SPDX-License-Identifier: Apache-2.0
"""The files of a run and their readers. A damaged file is reported and left out."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run.run_folder import RECORD
from op_tools.capture import SUFFIX
from op_tools.diagnosis.report.model import Content
from op_tools.diagnosis.report.readers import conformance, diagnosis, recorder, tools

Reader = Callable[[Path, Content], None]

# By patterns of names, the first that matches; a reader may skip a file of another kind.
READERS: tuple[tuple[str, str, Reader], ...] = (
    ("op_autocompare_info_*.jsonl", "comparisons", tools.comparisons),
    ("op_autocompare_info_*.csv", "comparisons", tools.comparison_table),
    ("op_elasped_info_*.json", "times, by kind of call", tools.time_groups),
    ("op_elasped_info_*.csv", "times, by call", tools.times),
    ("op_statistics_info_*.jsonl", "statistics", tools.statistics),
    (f"*{SUFFIX}", "captured calls", tools.archive),
    ("*.problems.json", "verdicts", tools.verdicts),
    ("op_guard_info_*.json", "verdicts", tools.verdicts),
    ("process_monitor_result_*.csv", "memory of the process", tools.monitor),
    ("recorder_*.jsonl", "flight recorder", recorder.steps),
    ("results.jsonl", "conformance", conformance.results),
    ("rank-*.json", "collectives", diagnosis.collectives),
    ("*.json", "", diagnosis.any_json),
)
# Folders of calls have thousands of small files: only the folder is listed.
SKIPPED = {".owners", "device", "cpu"}
STAMP = re.compile(r"\d{4}(-\d\d){5}")  # in a name: the time of the first write
RANK = re.compile(r"-rank(\d+)of(\d+)")
TOGETHER = timedelta(seconds=90)  # between the starts of a run's ranks at most


def read(run: Path) -> Content:
    """Read a run: a folder, or one file of it."""
    if not run.exists():
        raise DeeplinkError(
            _("there is nothing at {run}.").format(run=run),
            _("give what a tool wrote: op_tools_results, a file in it, or the folder of `diff`."),
        )
    content = Content(title=run.resolve().name)
    files = list(_files(run)) if run.is_dir() else [run]
    kept = _last(files, content)
    records = _records(run, files, kept)
    if sum(file.name == RECORD for file in records) > 1:
        text = _("{count} runs are shown together; name the folder of one to see it alone")
        content.notes.append(text.format(count=len(records)))
    for file in records:
        with contextlib.suppress(OSError, ValueError):  # truncated: the process was killed
            tools.run_record(json.loads(file.read_text("utf-8")), content)
    for file in kept:
        _one(file, run, content)
    content.problems += _missing(kept)
    if run.is_dir():
        tools.folders(run, content)
    if content.empty:
        seen = "; ".join(content.problems) or _(
            "{count} {count:file|files}, none of a tool"
        ).format(count=len(files))
        raise DeeplinkError(
            _("{run} has nothing to show: {seen}.").format(run=run, seen=seen),
            _("`deeplink run --time train.py` or `--autocompare` writes op_tools_results."),
        )
    return content


def _files(root: Path) -> Iterator[Path]:
    for file in sorted(root.rglob("*")):
        inner = file.relative_to(root).parts
        if file.is_file() and not SKIPPED & set(inner[:-1]) and not file.name.startswith("."):
            yield file


def _last(files: list[Path], content: Content) -> list[Path]:
    """The files of the last run of each tool, in a folder with the results of many runs."""
    newest: dict[str, datetime] = {}
    for file in files:
        stamp = _stamp(file)
        if stamp is not None:
            kind = file.name.split("_pid")[0]
            newest[kind] = max(newest.get(kind, stamp), stamp)
    kept, left = [], 0
    for file in files:
        stamp = _stamp(file)
        last = newest.get(file.name.split("_pid")[0])
        if stamp is not None and last is not None and last - stamp > TOGETHER:
            left += 1
        else:
            kept.append(file)
    if left:
        text = _(
            "{left} {left:file|files} of earlier runs in this folder {left:is|are} left "
            "out; name one to see it"
        ).format(left=left)
        content.notes.append(text)
    return kept


def _records(run: Path, files: list[Path], kept: list[Path]) -> list[Path]:
    """The files that say how the run was made: run.json, else those of the processes that wrote
    the files that are shown.
    """
    shown = [file for file in kept if not file.name.startswith("run")]
    folders = [run, *run.parents[:2]] if run.is_file() else []
    beside = [folder / RECORD for folder in folders if (folder / RECORD).is_file()]
    whole = [file for file in files if file.name == RECORD] or beside[:1]
    whole = [file for file in whole if any(file.parent in each.parents for each in shown)]
    if whole:
        return whole
    places = [run] if run.is_dir() else run.parents[:2]
    found = {
        file
        for place in places
        for file in (place.rglob if run.is_dir() else place.glob)("run_pid*.json")
    }
    written = {n for file in shown for n in re.findall(r"\d+", "/".join(file.parts[-5:]))}
    return sorted(file for file in found if not written or _pid(file) in written)


def _pid(file: Path) -> str:
    match = re.match(r"run_pid(\d+)", file.name)
    return match[1] if match else ""


def _missing(files: list[Path]) -> list[str]:
    """The ranks without a file, if other ranks have one."""
    found = [match for file in files if (match := RANK.search(file.name))]
    world = max((int(match[2]) for match in found), default=0)
    missing = sorted(set(range(world)) - {int(match[1]) for match in found})
    names = ", ".join(map(str, missing))
    return (
        [
            _("rank {names} of {world} is missing; the rest is shown").format(
                names=names, world=world
            )
        ]
        if missing
        else []
    )


def _stamp(file: Path) -> datetime | None:
    found = STAMP.search(file.stem)
    return datetime.strptime(found[0], "%Y-%m-%d-%H-%M-%S") if found else None


def _one(file: Path, run: Path, content: Content) -> None:
    found = next((row for row in READERS if file.match(row[0])), None)
    if found is None:
        return
    pattern, what, reader = found
    shown = str(file.relative_to(run)) if run.is_dir() else file.name
    if pattern.endswith(".csv") and _has_details(file, pattern):
        return
    before = (len(content.rows), len(content.sources))
    rank = RANK.search(file.name)
    try:
        reader(file, content)
    except Exception as error:  # a truncated file, or one of another kind: reported, not raised
        content.problems.append(
            _("{shown} was not read: {name}: {error}").format(
                shown=shown, name=type(error).__name__, error=error
            )
        )
        return
    if rank is not None:
        for row in content.rows[before[0] :]:
            row.rank = int(rank[1])
    if what and (len(content.rows) > before[0] or file.stat().st_size):
        content.sources.append((shown, what))


def _has_details(file: Path, pattern: str) -> bool:
    return pattern.startswith("op_autocompare") and file.with_suffix(".jsonl").exists()
