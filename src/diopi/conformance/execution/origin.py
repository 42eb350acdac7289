# SPDX-License-Identifier: Apache-2.0
"""The machine, versions and time of a run, without which its metrics have no meaning."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Origin:
    """The machine of a run, its versions, its day and its duration."""

    machine: str
    torch: str
    python: str
    day: str
    jobs: int
    seconds: float
    cpu_seconds: float  # of all processes, and of the earlier parts of a resumed run
    part: str = ""  # progress, when it was interrupted

    def __str__(self) -> str:
        part = f"; interrupted at {self.part}" if self.part else ""
        return (
            f"{self.machine}; torch {self.torch}, Python {self.python}; {self.day}; "
            f"{self.seconds:.0f} s with {self.jobs} processes, {self.cpu_seconds:.0f} s of CPU"
            f"{part}"
        )


class Watch:
    """Measures a run from its construction on, added to the earlier part of a resumed run."""

    def __init__(self, earlier: Origin | None = None) -> None:
        self._started, self._used = time.monotonic(), _cpu()
        if earlier is not None:
            self._started -= earlier.seconds
            self._used -= earlier.cpu_seconds

    def origin(self, machine: str, jobs: int, part: str = "") -> Origin:
        """Return the origin of this run until now, on the machine that a worker described."""
        return Origin(
            machine,
            torch.__version__,
            platform.python_version(),
            time.strftime("%Y-%m-%d"),
            jobs,
            round(time.monotonic() - self._started, 1),
            round(_cpu() - self._used, 1),
            part,
        )


def machine(device: str) -> str:
    """Describe the processor, and the device if it has a name."""
    found = f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} CPUs"
    kind = torch.device(device).type
    if kind == "cpu":
        return found
    module = torch.get_device_module(kind)
    name = module.get_device_name() if hasattr(module, "get_device_name") else ""
    return f"{found}; {kind} {name}".strip()


def _processor() -> str:
    if CPUINFO.is_file():
        for line in CPUINFO.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _cpu() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in spent)
