# SPDX-License-Identifier: Apache-2.0
"""`python -m op_tools.process_monitor --pid P`: CPU and memory of a process, memory of devices.

Ends when the process does. Reads /proc, or asks psutil where that is installed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deeplink import settings
from deeplink.errors import DeeplinkError
from op_tools.core import output_paths

COLUMNS = ("runningtime(Seconds)", "time_str", "time(Seconds)", "cpu_percent(%)", "rss(MB)")
DEVICE_COLUMNS = ("device_memusage(MB)", "device_cards")


@dataclass(frozen=True)
class Usage:
    """What a process has used: seconds of CPUs since its start, and bytes of memory now."""

    cpu: float
    memory: int


class Process(Protocol):
    """A running process."""

    def usage(self) -> Usage | None:
        """What it has used; None when it is no more."""


class ProcProcess:
    """By /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._started = self._fields()[19]  # the number may be given to another process later

    def _fields(self) -> list[str]:
        # the name of the program, in brackets, may hold blanks and brackets
        return (self._folder / "stat").read_text().rpartition(")")[2].split()

    def usage(self) -> Usage | None:
        try:
            fields = self._fields()
        except (OSError, ValueError):
            return None
        if fields[0] in "ZX" or fields[19] != self._started:
            return None
        cpu = (int(fields[11]) + int(fields[12])) / self._ticks
        return Usage(cpu, int(fields[21]) * self._page)


class PsutilProcess:
    """By psutil."""

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._process = psutil.Process(pid)

    def usage(self) -> Usage | None:
        try:
            if self._process.status() == self._psutil.STATUS_ZOMBIE:
                return None
            times = self._process.cpu_times()
            return Usage(times.user + times.system, self._process.memory_info().rss)
        except self._psutil.NoSuchProcess:
            return None


def find(pid: int) -> Process:
    """The process of this number; DeeplinkError when there is none."""
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        psutil = None
    try:
        found: Process = ProcProcess(pid) if psutil is None else PsutilProcess(psutil, pid)
    except (OSError, ValueError):  # psutil takes no number below zero
        found = _none(pid)
    except Exception as error:  # psutil's own; it is not known by its type here
        if type(error).__name__ != "NoSuchProcess":
            raise
        found = _none(pid)
    if found.usage() is None:
        _none(pid)
    return found


def _none(pid: int) -> Any:
    hint = "give the number of a process that runs here and that you may look at (`ps`)."
    if not Path("/proc").is_dir():
        hint = "this system has no /proc: install psutil."
    raise DeeplinkError(f"there is no process {pid} to watch.", hint)


@dataclass(frozen=True)
class Devices:
    """The memory of the chosen vendor's devices that is in use, by whichever process."""

    vendor: str = ""
    used: Callable[[], list[int]] | None = None


def devices() -> Devices:
    """By the module of the chosen vendor; of the CPU and the reference device there is none."""
    from deeplink.vendor import choose

    try:
        vendor = choose().vendor
        if vendor.name in ("cpu", "reference") or not vendor.device_module:
            return Devices()
        importlib.import_module(vendor.device_module)
        module = getattr(importlib.import_module("torch"), vendor.device)

        def used() -> list[int]:
            info = (module.mem_get_info(card) for card in range(module.device_count()))
            return [total - free for free, total in info]

        used()
    except Exception:  # a vendor's package may raise anything; the process is watched all the same
        return Devices()
    return Devices(vendor.name, used)


def samples(process: Process, interval: float, cards: Devices) -> Iterator[list[object]]:
    """A row at each interval, until the process is no more."""
    begun = at = time.monotonic()
    before = process.usage()
    while before is not None:
        time.sleep(interval)
        usage, now = process.usage(), time.monotonic()
        if usage is None:
            return
        row: list[object] = [
            f"{now - begun:.3f}",
            time.strftime("%Y-%m-%d %H:%M:%S"),
            f"{time.time():.3f}",
            f"{100 * (usage.cpu - before.cpu) / max(now - at, 1e-9):.1f}",
            f"{usage.memory / 2**20:.3f}",
        ]
        if cards.used is not None:
            each = cards.used()
            row += [f"{sum(each) / 2**20:.3f}", len(each)]
        yield row
        before, at = usage, now


def watch(pid: int, interval: float = 1.0) -> Path:
    """Watches a process to its end; returns the file that was written, row by row."""
    process, cards = find(pid), devices()
    folder = output_paths.folder("process_monitor_result")
    label, when = settings.label(), time.strftime("%Y-%m-%d-%H-%M-%S")
    path = folder / f"process_monitor_result_{cards.vendor}_pid{pid}_{label}_{when}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS + (DEVICE_COLUMNS if cards.used is not None else ()))
        for row in samples(process, interval, cards):
            rows.writerow(row)
            file.flush()  # who watches may be stopped at any time
    return path


def main(line: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m op_tools.process_monitor",
        description=__doc__,
        epilog="example: python -m op_tools.process_monitor --pid 4711 --interval 5",
    )
    parser.add_argument("--pid", type=int, required=True, help="the process to watch")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two rows")
    given = parser.parse_args(line)
    if given.interval <= 0:
        parser.error("--interval: a time above 0")
    try:
        path = watch(given.pid, given.interval)
    except DeeplinkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"process {given.pid} has ended; saved to {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
