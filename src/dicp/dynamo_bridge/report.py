# SPDX-License-Identifier: Apache-2.0
"""Reports of what was compiled, what stayed eager and why: records on disk, and their tables."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from deeplink import settings
from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dicp.dynamo_bridge.codegen import user_line
from dicp.dynamo_bridge.partition import NO_WORK, Split

log = logging.getLogger("dicp")

KEPT = 20  # number of stored reports


@dataclass
class Record:
    """One graph. `eager` counts what stayed eager by operator and reason; `seconds` by stage."""

    number: int
    backend: str
    kind: str  # inference, forward, backward
    nodes: int = 0
    taken: int = 0
    parts: int = 0
    cached: int = 0  # partitions that came from the disk
    frozen: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    eager: list[dict[str, Any]] = field(default_factory=list)
    refreshed: int = 0
    decision: str = ""  # what runs it, and why, where that was measured
    stays_eager: bool = False  # no compiled part of it runs

    def decide(self, text: str, stays_eager: bool) -> None:
        """Set what runs the graph and why, and write the report."""
        self.decision, self.stays_eager = text, stays_eager
        write()


RECORDS: list[Record] = []


def begin(backend: str, kind: str) -> Record:
    """Create a record in this process."""
    RECORDS.append(Record(len(RECORDS), backend, kind))
    return RECORDS[-1]


def count(record: Record, whole: Split) -> None:
    """Count compiled and eager operators of a graph in a record."""
    sub = sum(_calls(part) for part in whole.parts.values())
    record.taken, record.parts = sub, len(whole.parts)
    record.nodes = sub + len(whole.eager)
    reasons = Counter((str(n.target), why) for n, why in whole.eager.items())
    lines = {(str(n.target), why): user_line(n) for n, why in reversed(whole.eager.items())}
    record.eager = [
        {"op": op, "reason": why, "count": number, "line": lines[op, why]}
        for (op, why), number in reasons.most_common()
    ]


_said: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning that is not repeated in this process."""
    if text not in _said:
        _said.add(text)
        log.warning(text)


def warn_if_eager(record: Record) -> None:
    """Log once per backend and reason that no operator of a graph was compiled."""
    gaps = [row for row in record.eager if row["reason"] != NO_WORK]
    if gaps and not record.taken:
        warn_once(
            f"{record.backend} compiled 0 of {record.nodes} operators of a graph, which runs "
            f"eagerly; {gaps[0]['op']}: {gaps[0]['reason']}. Hint: `deeplink compile-report` lists "
            "every operator and its reason."
        )


def _calls(gm: fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in gm.graph.nodes)


def folder() -> Path:
    return settings.DICP_CACHE_DIR.get() / "reports"


def write() -> None:
    """Write this process's records to disk; a full or read-only disk is no error of the program."""
    path = folder() / f"{_STARTED}-{os.getpid()}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            for old in sorted(folder().glob("*.json"))[: 1 - KEPT or None]:
                old.unlink(missing_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps([asdict(record) for record in RECORDS]))
        temporary.replace(path)
    except OSError:
        return


_STARTED = time.strftime("%Y%m%d-%H%M%S")


def read(path: Path | None = None) -> list[Record]:
    """Read the records of one process: of a file, or of the last process that compiled anything."""
    if path is None:
        found = sorted(folder().glob("*.json"))
        if not found:
            raise DeeplinkError(
                f"no report in {folder()}.",
                hint='run a program with torch.compile(model, backend="dicp") first.',
            )
        path = found[-1]
    try:
        return [Record(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise DeeplinkError(
            _("cannot read {path} as a report: {error}.").format(path=path, error=error),
            _("`deeplink compile-report` without a file shows the last report."),
        ) from error


def show(records: Iterable[Record]) -> None:
    """Print two tables: the graphs, and what stayed eager."""
    out, records = console(), list(records)
    columns = ("graph", "backend", "kind", "ops", "compiled", "parts", "cached", "seconds", "note")
    rows = [
        (
            str(r.number),
            r.backend,
            r.kind,
            str(r.nodes),
            str(0 if r.stays_eager else r.taken),
            str(0 if r.stays_eager else r.parts),
            str(r.cached),
            f"{sum(r.seconds.values()):.2f}",
            r.decision or (f"refreshed {r.refreshed} times" if r.refreshed else ""),
        )
        for r in records
    ]
    out.print(table("Compiled graphs", columns, rows))
    left = [
        (str(r.number), e["op"], str(e["count"]), e["reason"], e["line"])
        for r in records
        for e in r.eager
    ]
    if left:
        out.print(table("Stayed eager", ("graph", "op", "count", "reason", "line"), left))


def plain(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Convert the records for JSON."""
    return [asdict(record) for record in records]
