# SPDX-License-Identifier: Apache-2.0
"""`python -m op_tools.process_monitor --pid P`: CPU and memory of a process, memory of devices.

Ends when the process does.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deeplink import settings
from deeplink.console import Output
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.core import output_paths

COLUMNS = ("runningtime(Seconds)", "time_str", "time(Seconds)", "cpu_percent(%)", "rss(MB)")
DEVICE_COLUMNS = ("device_memusage(MB)", "device_cards")


class Usage(NamedTuple):
    """CPU seconds of a process since its start, and the bytes of memory it uses."""

    cpu: float
    memory: int


class Process:
    """A running process, read from /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._started = self._fields()[19]  # another process may get the number later

    def _fields(self) -> list[str]:
        # the name of the program, in brackets, may contain blanks and brackets
        return (self._folder / "stat").read_text().rpartition(")")[2].split()

    def usage(self) -> Usage | None:
        """CPU time and memory; None when the process has ended."""
        try:
            fields = self._fields()
        except (OSError, ValueError):
            return None
        if fields[0] in "ZX" or fields[19] != self._started:
            return None
        cpu = (int(fields[11]) + int(fields[12])) / self._ticks
        return Usage(cpu, int(fields[21]) * self._page)


def find(pid: int) -> Process:
    """The process with this number; DeeplinkError when there is none."""
    try:
        process = Process(pid)
    except (OSError, ValueError):
        process = None
    if process is None or process.usage() is None:
        hint = _("give the number of a process that runs here and that you may inspect (`ps`).")
        if not Path("/proc").is_dir():
            hint = _("this system has no /proc, which this command reads.")
        raise DeeplinkError(_("there is no process {pid} to watch.").format(pid=pid), hint)
    return process


class Devices(NamedTuple):
    """The used memory of the chosen vendor's devices, by all processes."""

    vendor: str = ""
    used: Callable[[], list[int]] | None = None


def devices() -> Devices:
    """Find the chosen vendor's devices; the CPU and the reference device have none."""
    from deeplink.vendor import choose

    try:
        vendor = choose().vendor
        if vendor.name in ("cpu", "reference") or not vendor.device_module:
            return Devices()
        importlib.import_module(vendor.device_module)
        module = getattr(importlib.import_module("torch"), vendor.device)

        def used() -> list[int]:
            info = (module.mem_get_info(index) for index in range(module.device_count()))
            return [total - free for free, total in info]

        used()
    except Exception:  # a vendor's package may raise anything
        return Devices()
    return Devices(vendor.name, used)


def samples(process: Process, interval: float, gpus: Devices) -> Iterator[list[object]]:
    """Yield a row at each interval, until the process ends."""
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
        if gpus.used is not None:
            each = gpus.used()
            row += [f"{sum(each) / 2**20:.3f}", len(each)]
        yield row
        before, at = usage, now


def watch(pid: int, interval: float = 1.0) -> Path:
    """Watch a process until it ends, and return the file of rows."""
    process, gpus = find(pid), devices()
    folder = output_paths.folder("process_monitor_result")
    label, stamp = settings.label(), output_paths.stamp()
    path = folder / f"process_monitor_result_{gpus.vendor}_pid{pid}_{label}_{stamp}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS + (DEVICE_COLUMNS if gpus.used is not None else ()))
        for row in samples(process, interval, gpus):
            rows.writerow(row)
            file.flush()  # this command may be stopped at any time
    return path


def main(line: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m op_tools.process_monitor",
        description=__doc__,
        epilog="example: python -m op_tools.process_monitor --pid 4711 --interval 5",
    )
    parser.add_argument("--pid", type=int, required=True, help="the process to watch")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two rows")
    options = parser.parse_args(line)
    if options.interval <= 0:
        parser.error("--interval: a time above 0")
    try:
        path = watch(options.pid, options.interval)
    except DeeplinkError as error:
        Output(stderr=True).write(str(error) + "\n")
        return 1
    except KeyboardInterrupt:
        return 130
    Output().write(
        _("process {pid} has ended; saved to {path}\n").format(pid=options.pid, path=path)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
