# SPDX-License-Identifier: Apache-2.0
"""The content of a page: calls in columns, findings, charts. Readers fill it, `html` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["unknown", "right", "wrong", "nonfinite", "skipped"]
STATES: tuple[State, ...] = ("unknown", "right", "wrong", "nonfinite", "skipped")
# How a run was made, in the order of the page's header.
ABOUT = (
    *("command", "device", "vendor", "torch", "python", "deeplink", "host", "date", "duration"),
    "status",
)


@dataclass(slots=True)
class Row:
    """One call, or one judged part of a call."""

    op: str
    direction: str = "forward"
    step: int = 0
    module: str = ""
    site: str = ""  # file:line, with the whole path where it is known
    dtype: str = ""
    shape: str = ""
    part: str = ""  # output, grad[1]: of a comparison
    state: State = "unknown"
    start: float = -1.0  # microseconds, or the place in the order; -1: not on the timeline
    took: float = 0.0
    ms: float = -1.0  # -1: not timed
    error: float = -1.0  # as a multiple of what is allowed; -1: not judged
    low: float | None = None
    high: float | None = None
    norm: float | None = None
    bytes: float = 0.0  # of its results
    note: str = ""
    rank: int = 0
    run: int = 0  # of two runs side by side: 0 or 1


@dataclass(frozen=True)
class Finding:
    """A finding, shown at the top: problem, where, evidence, workaround, next step."""

    level: Literal["bad", "warn", "good", "info"]
    title: str
    lines: tuple[str, ...] = ()  # the evidence
    site: str = ""  # file:line
    where: str = ""  # in words, if the site alone does not say it
    workaround: str = ""  # a command
    next: str = ""  # a command, or the file to send
    run: int = 0  # of two runs side by side: 0 or 1


@dataclass(frozen=True)
class Series:
    """One line of a chart; None is a gap."""

    name: str
    values: list[float | None]


@dataclass(frozen=True)
class Chart:
    """Values along the network, the steps or the time."""

    kind: Literal["growth", "steps", "memory"]
    title: str
    axis: str  # what goes along the bottom
    unit: str
    labels: list[str]
    series: list[Series]
    log: bool = False
    tolerance: float | None = None  # a line of the chart: values above it are wrong


@dataclass(frozen=True)
class Group:
    """Calls of one kind: their times, and their work."""

    op: str
    shape: str
    module: str
    site: str
    direction: str
    calls: int
    ms: float  # in all
    p50: float
    p95: float
    flops: float  # of a call; 0: not known
    bytes: float


@dataclass(frozen=True)
class Cell:
    """An operator for one data type."""

    op: str
    dtype: str
    count: int
    wrong: int
    worst: float  # -1: not judged
    grade: str = ""
    known: int = 0  # wrong cases that the vendor's list of known gaps explains
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Any other table."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass
class Content:
    """The content of a page. Readers add to it."""

    title: str = "Run"
    rows: list[Row] = field(default_factory=list)
    modules: list[tuple[str, float, float]] = field(default_factory=list)  # name, start, took
    clock: str = ""  # "us" or "calls": what the timeline counts
    unit: str = "error / tolerance"  # of the errors of rows
    findings: list[Finding] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    sources: list[tuple[str, str]] = field(default_factory=list)  # file, what it is
    explained: dict[str, int] = field(default_factory=dict)  # operators: the finding of a search
    problems: list[str] = field(default_factory=list)  # what could not be read
    notes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # that the run was made on, with versions
    about: dict[str, str] = field(default_factory=dict)  # how the run was made, by ABOUT
    runs: list[dict[str, str]] = field(default_factory=list)  # of two runs: `about` of each
    pairs: list[dict[str, Any]] = field(default_factory=list)  # operators of two runs

    def made_on(self, device: str) -> None:
        """Add a device of the run, once."""
        if device not in self.devices:
            self.devices.append(device)

    def add_about(self, found: Mapping[str, Any]) -> None:
        """Add what a file of the run says of its command, device, versions, host and time."""
        for name in ABOUT:
            value = found.get(name)
            text = "" if value is None else str(value)
            known = self.about.get(name, "")
            if text and text not in known.split(" · "):
                self.about[name] = f"{known} · {text}" if known else text

    @property
    def empty(self) -> bool:
        parts = (self.rows, self.findings, self.groups, self.cells, self.charts, self.tables)
        return not any(parts)
