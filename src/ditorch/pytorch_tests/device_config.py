# SPDX-License-Identifier: Apache-2.0
"""Exceptions of one device in a run of PyTorch's tests, each with its reason.

In the vendor's gaps.toml, or in a file that --config names:

[pytorch_tests]
dtypes = ["float32", "bfloat16"]       types of the chip; tests in other dtypes are not run

[[pytorch_tests.skip]]
test = "op_db::.*_linalg_eig"          a pattern that is searched in file::class::test
reason = "why"

[[pytorch_tests.gap]]                  runs, and is known to fail on the device alone
test = "test_torch.py::.*_deepcopy"
kind = "notyet"                        todo, notyet or never, as in [[conformance]]
reason = "why"

[[pytorch_tests.tolerance]]            for the built-in suites
test = "test_forward_(tanh|erf)_"
dtype = "float32"
bound = 2e-3                           relative, and absolute near zero
reason = "why"

`[device]`, which every suite follows (deeplink.testing.device_rules), counts as well.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.testing import device_rules
from ditorch.pytorch_tests.results import Row, Test

SECTION = "pytorch_tests"
KEYS = (*device_rules.KEYS, "gap")
KINDS = ("todo", "notyet", "never")


@dataclass(frozen=True)
class Skip:
    """Tests that are not run, with the reason."""

    test: str
    reason: str


@dataclass(frozen=True)
class Known:
    """Tests that fail on the device although the CPU passes them; what they wait for, and why."""

    test: str
    kind: str  # one of KINDS
    reason: str


@dataclass(frozen=True)
class Tolerance:
    """A larger tolerance for tests of a built-in suite, with the reason."""

    test: str
    dtype: str
    bound: float
    reason: str


@dataclass(frozen=True)
class DeviceConfig:
    """The rules of one device; empty without a file."""

    dtypes: tuple[str, ...] = ()
    skips: tuple[Skip, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()
    shared: device_rules.Rules = device_rules.Rules()  # noqa: RUF009 - frozen
    known: tuple[Known, ...] = ()

    def skip(self, test: Test) -> Skip | None:
        shared = (Skip(_test_of(each.op, each.dtype), each.reason) for each in self.shared.skips)
        skips = (*self.skips, *shared)
        return next((skip for skip in skips if re.search(skip.test, str(test))), None)

    def known_gap(self, test: Test) -> Known | None:
        return next((each for each in self.known if re.search(each.test, str(test))), None)

    def all_tolerances(self) -> list[Tolerance]:
        """Return all tolerances, those of `[device]` first: the last match counts."""
        shared = self.shared.tolerances
        made = [Tolerance(_test_of(t.op, t.dtype), t.dtype, t.bound, t.reason) for t in shared]
        return [*made, *self.tolerances]

    def unmatched(self, tests: Iterable[Test]) -> list[str]:
        """Return the entries that match no test of the loaded files: misspelt, or obsolete."""
        tests = list(tests)
        names, files = [str(test) for test in tests], {test.file for test in tests}
        entries: Sequence[Skip | Tolerance | Known] = (*self.skips, *self.tolerances, *self.known)
        return [
            entry.test
            for entry in entries
            if _is_about(entry.test, files)
            and not any(re.search(entry.test, name) for name in names)
        ]


def _is_about(pattern: str, files: Iterable[str]) -> bool:
    """Whether a pattern is about one of the files; one that names no file is about all."""
    file, found, _ = pattern.partition("::")
    return not found or any(re.search(file, each) for each in files)


def _test_of(op: str, dtype: str) -> str:
    """Return the pattern of the tests of an op of op_db, in one dtype or (`*`) in all."""
    name = fnmatch.translate(op.replace(".", "_")).removesuffix(r"\Z").removesuffix(r"\z")
    last = r"\w+" if dtype == "*" else dtype
    return rf"op_db::.*::test_(for|back)ward_(nn_functional_)?{name}_cuda_{last}$"


def skipped(test: Test, skip: Skip) -> Row:
    """Create the row of a skipped test."""
    return Row(*test.key, "skipped", "0.000", message=f"left out: {skip.reason}")


def bounds(tolerances: Iterable[Sequence[Any]], test: Test) -> dict[str, float]:
    """Return the tolerances of a test by dtype; the last of several entries counts."""
    return {dtype: bound for pattern, dtype, bound in tolerances if re.search(pattern, str(test))}


def read(path: Path | None) -> DeviceConfig:
    """Read the section of a file; raise DeeplinkError for a misspelt key or a missing reason."""
    if path is None:
        return DeviceConfig()
    section = device_rules.section(path, SECTION, KEYS)
    shared = device_rules.read(path)
    config = DeviceConfig(
        tuple(section.get("dtypes", shared.dtypes)),
        device_rules.entries(Skip, section.get("skip", ()), path),
        device_rules.entries(Tolerance, section.get("tolerance", ()), path),
        shared,
        device_rules.entries(Known, section.get("gap", ()), path),
    )
    named: Sequence[Skip | Tolerance | Known] = (*config.skips, *config.tolerances, *config.known)
    for entry in named:
        _check_pattern(entry.test, path)
    for known in config.known:
        if known.kind not in KINDS:
            raise DeeplinkError(
                f"{path}: {known.test!r} has the kind {known.kind!r}; allowed: {', '.join(KINDS)}."
            )
    return config


def _check_pattern(pattern: str, path: Path) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise DeeplinkError(f"{path}: {pattern!r} is no pattern: {error}.") from None
