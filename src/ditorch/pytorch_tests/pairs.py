# SPDX-License-Identifier: Apache-2.0
"""Tests on the device next to the tests of the same name on the plain CPU, counted by file.

What counts is a test that the CPU passes and the device fails. A test that fails on both, that the
CPU skips, or that exists for one of them alone says nothing about the device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ditorch.pytorch_tests.device_config import DeviceConfig, Known
from ditorch.pytorch_tests.results import CPU, DEVICE, Key, Row, Test
from ditorch.pytorch_tests.sources import EXAMPLE_FOLDER

Name = tuple[str, str, str]


@dataclass(frozen=True)
class Pair:
    """A test on the device; `cpu` is its row without a device, `known` its entry in gaps.toml."""

    row: Row
    cpu: Row | None = None
    known: Known | None = None

    @property
    def counts(self) -> bool:
        """Whether the CPU passes the test, and the device ran it.

        Tests of torch's example device do not exist for the CPU: all of them count.
        """
        if EXAMPLE_FOLDER in self.row.file:
            return self.ran
        return self.cpu is not None and self.cpu.result == "passed" and self.ran

    @property
    def ran(self) -> bool:
        return self.row.result != "skipped"

    @property
    def lost(self) -> bool:
        """Whether the device fails what the CPU passes."""
        return self.counts and self.row.bad


@dataclass(frozen=True)
class Count:
    """The counts of one file."""

    file: str
    passed: int  # on the device
    failed: int
    skipped: int
    cpu_passed: int  # of the tests that ran on the device
    both: int  # of them, those that the device passes
    known: Mapping[str, int]  # failures of the device alone, by kind; "" is not listed

    @property
    def share(self) -> float:
        """Percent of the tests that the CPU passes; 100 where there are none."""
        return 100 * self.both / self.cpu_passed if self.cpu_passed else 100.0

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "known": dict(self.known), "share": round(self.share, 2)}


def pairs(rows: Iterable[Row], rules: DeviceConfig, device: str) -> list[Pair]:
    """Pair the rows about the device with the CPU's; `device` is the name in the tests' names."""
    rows = list(rows)
    by_name = {_name(row, device): row for row in rows if row.device == CPU}
    return [
        Pair(row, by_name.get(_name(row, device)), rules.known_gap(_test(row)) if row.bad else None)
        for row in rows
        if row.device == DEVICE
    ]


def count(found: Sequence[Pair]) -> list[Count]:
    """Count the pairs of each file, and of all files under the name "total"."""
    files = sorted({pair.row.file for pair in found})
    by_file = {file: [pair for pair in found if pair.row.file == file] for file in files}
    lines = [_count(file, own) for file, own in by_file.items()]
    return [*lines, _count("total", found)] if len(lines) > 1 else lines


def _count(file: str, found: Sequence[Pair]) -> Count:
    results = Counter(pair.row.result for pair in found)
    both = sum(pair.counts and pair.row.result == "passed" for pair in found)
    lost = [pair for pair in found if pair.lost]
    return Count(
        file,
        results["passed"],
        results["failed"] + results["error"],
        results["skipped"],
        both + len(lost),
        both,
        Counter(pair.known.kind if pair.known else "" for pair in lost),
    )


def unlisted(found: Iterable[Pair]) -> list[Pair]:
    """Return the failures of the device alone that gaps.toml does not list."""
    return [pair for pair in found if pair.lost and pair.known is None]


def obsolete(rows: Iterable[Row], rules: DeviceConfig) -> list[str]:
    """Return the patterns of listed failures whose tests ran and all passed."""
    own = [row for row in rows if row.device == DEVICE and row.result != "skipped"]
    found = []
    for entry in rules.known:
        meant = [row for row in own if re.search(entry.test, str(row))]
        if meant and not any(row.bad for row in meant):
            found.append(entry.test)
    return found


def twin(key: Key, device: str) -> Name:
    """Return the name of a test without what says where it runs."""
    file, kind, name, _ = key
    return file, _plain_class(kind, device), _plain_test(name, device)


def _name(row: Row, device: str) -> Name:
    return twin(row.key, device)


def _test(row: Row) -> Test:
    return Test(*row.key)


def _plain_class(kind: str, device: str) -> str:
    for suffix in ("PRIVATEUSE1", "CUDA", "CPU", device.upper()):
        if kind.endswith(suffix):
            return kind.removesuffix(suffix)
    return kind


def _plain_test(name: str, device: str) -> str:
    found = list(re.finditer(rf"_({device}|cuda|cpu)(?=_|$)", name))
    if not found:
        return name
    return f"{name[: found[-1].start()]}_*{name[found[-1].end() :]}"
