"""What the operator tools cost: a transformer's training step under each, as a ratio to without.

A 4-layer, 256-wide transformer at length 128, batch 4, with AdamW, on the reference device (as
`cuda`, through ditorch) or with --device on another. Plain steps and steps under a tool take turns
in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.training_step import training

CALLS, REPEATS, CHAIN = 500, 12, 40


@dataclass(frozen=True)
class Case:
    """One way to run the step: a tool, its arguments, the environment, and what is hoped for."""

    what: str
    tool: str
    given: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    aims: tuple[float | None, float | None] = (None, None)  # on a CPU machine, on a GPU
    written: bool = False  # bytes and files are counted, and the time to write them
    warm: int = 1  # turns before it is measured: what it does once is done in them
    settled: bool = False  # the step after a start, which decides about every operator, is left out
    in_a_row: int = (
        0  # steps of a turn, where a few do the work of many: the mean counts, not turns
    )


CASES = (
    Case("filtered, an empty list", "OpCapture", {"ops": ""}, aims=(1.05, 1.3)),
    Case(
        "filtered, a list that none is in", "OpCapture", {"ops": "torch.erfinv"}, aims=(1.05, 1.3)
    ),
    Case(
        "statistics of all kernels",
        "OpCapture",
        {"level": "aten"},
        {"OP_CAPTURE_MODE": "statistics"},
        aims=(1.2, 1.2),
        written=True,
        settled=True,
    ),
    Case(
        "statistics of all kernels, without the native part",
        "OpCapture",
        {"level": "aten"},
        {"OP_CAPTURE_MODE": "statistics", "OP_TOOLS_NATIVE": "0"},
        written=True,
        settled=True,
    ),
    Case(
        "statistics of all calls",
        "OpCapture",
        environment={"OP_CAPTURE_MODE": "statistics"},
        aims=(1.2, 1.2),
        written=True,
        settled=True,
    ),
    Case(
        "statistics of all calls, without the native part",
        "OpCapture",
        environment={"OP_CAPTURE_MODE": "statistics", "OP_TOOLS_NATIVE": "0"},
        written=True,
        settled=True,
    ),
    Case("capture, folders", "OpCapture", written=True),
    Case(
        "capture, packed",
        "OpCapture",
        environment={"OP_CAPTURE_FORMAT": "packed"},
        aims=(3.0, 3.0),
        written=True,
    ),
    Case("time, events", "OpTimeMeasure", aims=(1.3, 1.3)),
    Case("time, sync", "OpTimeMeasure", environment={"OP_TIME_MEASURE_MODE": "sync"}),
    Case("compare, every call", "OpAutoCompare", aims=(8.0, 8.0), warm=8, in_a_row=24),
    Case(
        "compare, once per signature",
        "OpAutoCompare",
        environment={"OP_AUTOCOMPARE_MODE": "signature"},
        aims=(1.5, 1.5),
    ),
    Case("fall back, every operator", "OpFallback"),
    Case(
        "cast float32 -> float64",
        "OpDtypeCast",
        environment={"OP_DTYPE_CAST_DICT": "float32->float64"},
    ),
    Case("overflow check", "OpOverflowCheck"),
    Case("observe, to /dev/null", "OpObserve"),
)


@dataclass
class Figure:
    """What was measured of a case."""

    what: str
    ratio: float | None = None
    plain_ms: float = 0.0
    tool_ms: float = 0.0
    aim: float | None = None
    bytes: float | None = None  # of a step
    files: float | None = None
    note: str = ""
    unit: str = ""

    @property
    def met(self) -> str:
        if self.aim is None or self.ratio is None:
            return ""
        return "yes" if self.ratio <= self.aim else "no"


@contextmanager
def surroundings(values: dict[str, str], folder: Path) -> Iterator[None]:
    """The environment of a case, and its standard output out of sight."""
    from op_tools.core import native_library

    values = {**values, "OP_TOOLS_RESULTS": str(folder)}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    native_library.helper.cache_clear()  # the case may go without it
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        native_library.helper.cache_clear()


class Bench:
    """Plain steps and steps under a tool, taking turns."""

    DISK = 64 << 20  # bytes of a step from which on the disk is what counts

    def __init__(
        self, device: str, rounds: int, steps: int, clock: Callable[[], float], place: Path
    ) -> None:
        self.device, self.rounds, self.steps, self.clock = device, rounds, steps, clock
        self.place = place  # where the tools write
        self.step = training(device)
        for _ in range(3):
            self.step()

    def took(self, warm: bool = False, steps: int = 0) -> float:
        """Seconds of a turn: some steps; warm: after one that is not counted."""
        if warm:
            self.step()
            torch.accelerator.synchronize()
        begun = self.clock()
        for _ in range(steps or self.steps):
            self.step()
        torch.accelerator.synchronize()
        return self.clock() - begun

    def by_turns(self, case: Case, on_gpu: bool) -> Figure:
        """A start, some steps, a stop that waits for what is written in the background."""
        figure, kind, pairs = Figure(case.what, aim=case.aims[on_gpu]), find(case.tool), []
        drained = []
        for turn in range(self.rounds + 1):
            folder = Path(tempfile.mkdtemp(prefix="bench_op_tools_", dir=self.place))
            plain = self.took()
            with surroundings(case.environment, folder):
                tool = kind(**case.given).start()
                seconds = self.took(warm=case.settled)
                begun = self.clock()
                tool.stop()
                waited = self.clock() - begun
            if turn:  # the first one warms up
                pairs.append((plain, seconds + waited))
                drained.append((seconds / plain, waited))
            files = [path for path in folder.rglob("*") if path.is_file()]
            steps = self.steps + case.settled
            figure.bytes = sum(path.stat().st_size for path in files) / steps
            figure.files = len(files)
            shutil.rmtree(folder)
        self.summed(figure, pairs)
        if (figure.bytes or 0) > self.DISK and self.clock is time.perf_counter:
            steps, waited = (statistics.median(column) for column in zip(*drained, strict=True))
            floor = (figure.bytes or 0) / disk_speed(self.place) * 1e3
            least = floor / figure.plain_ms
            figure.note = (
                f"the steps alone {steps:.2f}, then {waited * 1e3:.0f} ms to write the rest; "
                f"one stream alone takes {floor:.0f} ms a step there, a ratio of {least:.1f}"
            )
        return figure

    def steady(self, case: Case, on_gpu: bool) -> Figure:
        """In one run of the tool: what it does once is done before."""
        from op_tools.core import engine

        figure, kind, pairs = Figure(case.what, aim=case.aims[on_gpu]), find(case.tool), []
        folder = Path(tempfile.mkdtemp(prefix="bench_op_tools_", dir=self.place))
        with surroundings(case.environment, folder):
            tool = kind(**case.given).start()
            try:
                first = self.took()
                for _ in range(case.warm - 1):
                    self.took()
                for _ in range(max(3, self.rounds // 2) if case.in_a_row else self.rounds):
                    # a change makes the first step find out what each tool wants: it is not counted
                    seconds = self.took(warm=True, steps=case.in_a_row)
                    engine.stop(tool)  # aside, with all that it knows
                    plain = self.took(warm=True, steps=case.in_a_row)
                    engine.start(tool)
                    pairs.append((plain, seconds))
            finally:
                tool.stop()
        shutil.rmtree(folder)
        if case.warm > 1:
            figure.note = f"the first {self.steps} steps took {first:.1f} s"
        if case.in_a_row:
            return self.whole(figure, pairs, case.in_a_row)
        return self.summed(figure, pairs)

    def whole(self, figure: Figure, pairs: list[tuple[float, float]], steps: int) -> Figure:
        """The means of all steps: what only a few of them do is in it."""
        plain, tool = (sum(column) / len(pairs) / steps for column in zip(*pairs, strict=True))
        figure.ratio, figure.plain_ms, figure.tool_ms = tool / plain, plain * 1e3, tool * 1e3
        each = ", ".join(f"{b / a:.1f}" for a, b in pairs)
        figure.note += (
            f"; the mean of {len(pairs)} x {steps} in a row ({each}), all that wait included"
        )
        return figure

    def summed(self, figure: Figure, pairs: list[tuple[float, float]]) -> Figure:
        figure.ratio = statistics.median(tool / plain for plain, tool in pairs)
        figure.plain_ms = statistics.median(plain for plain, _ in pairs) / self.steps * 1e3
        figure.tool_ms = statistics.median(tool for _, tool in pairs) / self.steps * 1e3
        return figure

    def tiny(self) -> Figure:
        """Microseconds that a filtered operator pays, on four floats."""
        import op_tools

        a = torch.ones(4, device=self.device)
        tool = op_tools.OpObserve(ops="torch.erfinv")
        best = [float("inf")] * 2
        with contextlib.redirect_stdout(io.StringIO()):
            for _ in range(REPEATS):
                best[0] = min(best[0], _each(lambda: a + a))
                with tool:
                    best[1] = min(best[1], _each(lambda: a + a))
        more = (best[1] - best[0]) * 1e6
        note = f"{best[0] * 1e6:.2f} -> {best[1] * 1e6:.2f} us"
        return Figure("a filtered tiny add", more, aim=2.5, note=note, unit="us")

    def tiny_timed(self) -> list[Figure]:
        """Microseconds that timing costs a call on four floats: forward, and forward with backward.

        Without the rows' way into the tables, which comes later.
        """
        import op_tools

        devices = ["cpu"] if self.device == "cpu" else None
        tool = op_tools.OpTimeMeasure(devices=devices)
        leaf = torch.ones(4, device=self.device, requires_grad=True)
        other = torch.ones(4, device=self.device)

        def chain() -> tuple[float, float]:
            x, begun = leaf, time.perf_counter()
            for _ in range(CHAIN):
                x = x + other
            middle = time.perf_counter()
            x.backward(other)
            torch.accelerator.synchronize() if self.device != "cpu" else None
            return (middle - begun) / CHAIN, (time.perf_counter() - middle) / CHAIN

        best = [[float("inf")] * 2 for _ in range(2)]
        for _ in range(10 * REPEATS):
            best[0] = [min(pair) for pair in zip(best[0], chain(), strict=True)]
            with contextlib.redirect_stdout(io.StringIO()), tool:
                for _ in range(2):
                    chain()
                tool.summary()  # what was used once is used again from here on
                best[1] = [min(pair) for pair in zip(best[1], chain(), strict=True)]
        figures = []
        for at, what in enumerate(("forward", "backward")):
            plain, timed = best[0][at] * 1e6, best[1][at] * 1e6
            note = f"{plain:.2f} -> {timed:.2f} us"
            name = f"time, per tiny op, {what}"
            figures.append(Figure(name, timed - plain, aim=4.0, note=note, unit="us"))
        return figures


def find(tool: str) -> Any:
    """The tool of this name; LookupError when it does not exist yet."""
    import op_tools

    if not hasattr(op_tools, tool):
        raise LookupError(f"{tool} is absent")
    return getattr(op_tools, tool)


def disk_speed(place: Path, size: int = 512 << 20, piece: int = 16 << 20) -> float:
    """Bytes a second that the disk of a folder takes from one thread, past the system's cache."""
    data = mmap.mmap(-1, piece)  # pages: such a write needs them
    data.write(os.urandom(piece))
    with tempfile.TemporaryDirectory(prefix="bench_op_tools_", dir=place) as folder:
        flags = os.O_WRONLY | os.O_CREAT
        try:
            file = os.open(f"{folder}/data", flags | os.O_DIRECT)
        except OSError:  # not on this file system
            file = os.open(f"{folder}/data", flags)
        begun = time.perf_counter()
        for start in range(0, size, piece):
            os.pwrite(file, data, start)
        os.fsync(file)
        seconds = time.perf_counter() - begun
        os.close(file)
    return size / seconds


def _each(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun) / CALLS


def show(figures: list[Figure], title: str) -> None:
    """The table."""
    table = Table(title=title)
    for column in ("what", "plain ms", "under it ms", "ratio", "aim", "met", "a step", "note"):
        table.add_column(column, justify="left" if column in ("what", "note") else "right")
    for figure in figures:
        size = "" if figure.bytes is None else f"{figure.bytes / 2**20:.1f} MiB"
        if figure.files is not None:
            size += f", {figure.files:.0f} files in all"
        sign = "+" if figure.unit else ""
        table.add_row(
            figure.what,
            f"{figure.plain_ms:.1f}" if figure.plain_ms else "",
            f"{figure.tool_ms:.1f}" if figure.tool_ms else "",
            "" if figure.ratio is None else f"{sign}{figure.ratio:.2f} {figure.unit}".strip(),
            "" if figure.aim is None else f"{sign}{figure.aim} {figure.unit}".strip(),
            figure.met,
            size,
            figure.note,
        )
    Console(width=max(Console().width, 140)).print(table)


def main() -> None:
    """Measures, prints the table, and writes it as JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="", help="such as cuda; default: by ditorch")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of turns for each tool")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn")
    parser.add_argument("--only", default="", help="a case's name, or a part of those of several")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the tools write; a memory file system (/dev/shm) leaves the disk out",
    )
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    options = parser.parse_args()
    if not options.device:
        import ditorch  # noqa: F401  # the chosen vendor's device stands for cuda
    device = options.device or "cuda"
    label = torch.cuda.get_device_name() if device.startswith("cuda") else device
    on_gpu = bool(options.device) and device != "cpu"
    wall = on_gpu or options.wall
    if not on_gpu:
        torch.set_num_threads(1)  # CPU time is counted: the threads of a shared machine disturb it
    clock = time.perf_counter if wall else time.process_time
    options.results.mkdir(parents=True, exist_ok=True)
    bench = Bench(device, options.rounds, options.steps, clock, options.results)
    figures = []
    named = [case for case in CASES if case.what == options.only]
    for case in named or [case for case in CASES if options.only in case.what]:
        try:
            way = bench.by_turns if case.written else bench.steady
            figures.append(way(case, on_gpu))
        except LookupError as error:
            figures.append(Figure(case.what, note=str(error)))
        except Exception as error:  # one tool's failure is a row, not the end
            figures.append(Figure(case.what, note=f"{type(error).__name__}: {error}"[:100]))
        print(f"{case.what}: {figures[-1].ratio or figures[-1].note}", file=sys.stderr)
        save(figures, options.json)  # after each: a long run may be cut off
    if options.only in "a filtered tiny add":
        figures.append(bench.tiny())
    if options.only in "time, per tiny op":
        with tempfile.TemporaryDirectory() as folder, surroundings({}, Path(folder)):
            figures += bench.tiny_timed()
    times = "wall time" if wall else "CPU time"
    show(figures, f"op_tools, a training step on {label}, torch {torch.__version__} ({times})")
    save(figures, options.json)


def save(figures: list[Figure], path: Path | None) -> None:
    """The numbers as JSON."""
    if path is not None:
        rows = [asdict(figure) | {"met": figure.met} for figure in figures]
        path.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
