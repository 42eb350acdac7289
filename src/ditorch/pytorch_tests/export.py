# SPDX-License-Identifier: Apache-2.0
"""What a device leaves out of PyTorch's tests, in the forms that other tools read.

FILE.json   tests that are switched off, by name: {"test (__main__.Class)": [issue, [reason]]}, the
            form of PyTorch's list of disabled tests
FILE.py     PyTorch's own test configuration: op_allowlist, op_overrides and test_exclusions of
            DeviceTypeTestBase.set_test_configs
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.testing import device_rules
from ditorch.pytorch_tests import pairs
from ditorch.pytorch_tests.device_config import DeviceConfig
from ditorch.pytorch_tests.results import DEVICE, Row, Test

OPS_FILE = re.compile(r"(^|/)test_ops\w*\.py$")  # its tests are made one per operator


@dataclass(frozen=True)
class LeftOut:
    """A test that the device leaves out, and why."""

    test: Test
    reason: str


@dataclass
class Configuration:
    """The three parts of PyTorch's test configuration."""

    overrides: dict[str, list[str]] = field(default_factory=dict)  # op -> expressions
    allowlist: list[str] | None = None
    exclusions: dict[str, list[str]] = field(default_factory=dict)  # class -> methods
    inexpressible: int = 0  # tests that only the JSON can name


def write(path: Path, rules: DeviceConfig, rows: Sequence[Row], device: str) -> int:
    """Write the list or the configuration that the suffix asks for; return the number of tests."""
    found = list(left_out(rules, rows))
    if path.suffix == ".json":
        text = f"{json.dumps(disabled(found), indent=2, ensure_ascii=False)}\n"
    elif path.suffix == ".py":
        text = module(configuration(rules, found, rows, device), device)
    else:
        raise DeeplinkError(
            _("--export-config {path}: the suffix {suffix!r} is neither .json nor .py.").format(
                path=path, suffix=path.suffix
            ),
            _("FILE.json is the list of disabled tests, FILE.py PyTorch's test configuration."),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return len(found)


def left_out(rules: DeviceConfig, rows: Iterable[Row]) -> Iterator[LeftOut]:
    """Yield the tests among the rows that gaps.toml names: left out, or failing on the device."""
    for row in rows:
        test = Test(*row.key)
        if row.device != DEVICE:
            continue
        if skip := rules.skip(test):
            yield LeftOut(test, skip.reason)
        elif row.bad and (known := rules.known_gap(test)):
            yield LeftOut(test, f"{known.kind}: {known.reason}")


def disabled(found: Iterable[LeftOut]) -> dict[str, list[Any]]:
    """Return the list of disabled tests: no issue, and the reason where others name a platform."""
    return {f"{e.test.name} (__main__.{e.test.class_name})": ["", [e.reason]] for e in found}


def configuration(
    rules: DeviceConfig, found: Sequence[LeftOut], rows: Sequence[Row], device: str
) -> Configuration:
    """Return PyTorch's test configuration for the rules of a device and the tests left out."""
    ops = _op_names()
    made = Configuration()
    _add_rules(made, rules.shared, ops)
    by_formatted = {name.replace(".", "_"): name for name in ops}
    variants: dict[tuple[str, str], set[Test]] = defaultdict(set)
    for row in rows:
        if row.device == DEVICE:
            variants[_method(Test(*row.key), device)].add(Test(*row.key))
    out = {each.test: each.reason for each in found}
    for (kind, method), tests in variants.items():
        chosen = [test for test in tests if test in out]
        if not chosen:
            continue
        op = _op_of(method, by_formatted) if OPS_FILE.search(chosen[0].file) else None
        if op is not None:
            dtypes = sorted({test.name.rpartition(f"_{device}_")[2] for test in chosen})
            _override(made, by_formatted[op], _skip(out[chosen[0]], dtypes, kind,
                                                    method.removesuffix(f"_{op}")))  # fmt: skip
        elif len(chosen) == len(tests):
            made.exclusions.setdefault(kind, []).append(method)
        else:
            made.inexpressible += len(chosen)
    return made


def module(made: Configuration, device: str) -> str:
    """Return the text of a module that sets the configuration when it is imported."""
    note = (
        f"# {made.inexpressible} more tests are left out in some of their variants only: these are "
        "in the list\n# of disabled tests (--export-config FILE.json).\n"
        if made.inexpressible
        else ""
    )
    return f'''"""PyTorch's test configuration for {device}. Import it before the test files.

Written by `deeplink pytorch-tests --export-config`.
"""

import unittest

import torch
from torch.testing._internal.common_device_type import PrivateUse1TestBase, tol, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

{note}OP_ALLOWLIST = {_literal(made.allowlist)}
OP_OVERRIDES = {_mapping(made.overrides, quoted=False)}
TEST_EXCLUSIONS = {_mapping(made.exclusions, quoted=True)}

PrivateUse1TestBase.set_test_configs(
    op_overrides=OP_OVERRIDES, op_allowlist=OP_ALLOWLIST, test_exclusions=TEST_EXCLUSIONS
)
'''


def _add_rules(made: Configuration, rules: device_rules.Rules, ops: Sequence[str]) -> None:
    """Add what `[device]` says: operators that are left out, types, tolerances."""
    missing = {op for s in rules.skips if s.dtype == "*" for op in _meant(s.op, ops)}
    if missing:
        made.allowlist = [op for op in ops if op not in missing]
    for skip in (each for each in rules.skips if each.dtype != "*"):
        for op in _meant(skip.op, ops):
            _override(made, op, _skip(skip.reason, [skip.dtype]))
    for each in rules.tolerances:
        bound = f"tol(atol={each.bound!r}, rtol={each.bound!r})"
        for op in _meant(each.op, ops):
            text = f"DecorateInfo(toleranceOverride({{torch.{each.dtype}: {bound}}}))"
            _override(made, op, text)


def _meant(pattern: str, ops: Iterable[str]) -> list[str]:
    functional = device_rules.FUNCTIONAL
    return [
        op
        for op in ops
        if fnmatch.fnmatchcase(op, pattern)
        or fnmatch.fnmatchcase(op.removeprefix(functional), pattern)
    ]


def _override(made: Configuration, op: str, text: str) -> None:
    made.overrides.setdefault(op, []).append(text)


def _skip(reason: str, dtypes: Sequence[str], kind: str = "", method: str = "") -> str:
    where = f", {kind!r}, {method!r}" if kind else ""
    types = "".join(f"torch.{name}, " for name in dtypes if name)
    limit = f", dtypes=({types.rstrip()})" if types else ""
    return f"DecorateInfo(unittest.skip({reason!r}){where}{limit})"


def _method(test: Test, device: str) -> tuple[str, str]:
    """Return the generic class and the method of a test, with its parameters besides dtypes."""
    _, kind, name = pairs.twin(test.key, device)
    return kind, name.partition("_*")[0]


def _op_of(method: str, formatted: Mapping[str, str]) -> str | None:
    """Return the operator at the end of a test's name; the longest one."""
    found = [op for op in formatted if method.endswith(f"_{op}") and method != f"test_{op}"]
    return max(found, key=len, default=None)


def _op_names() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted({op.full_name for op in op_db})


def _literal(names: Sequence[str] | None) -> str:
    if names is None:
        return "None"
    return "[\n" + "".join(f"    {name!r},\n" for name in names) + "]"


def _mapping(values: Mapping[str, Sequence[str]], *, quoted: bool) -> str:
    lines = []
    for key, each in sorted(values.items()):
        inner = "".join(f"        {text!r},\n" if quoted else f"        {text},\n" for text in each)
        lines.append(f"    {key!r}: [\n{inner}    ],\n")
    return "{\n" + "".join(lines) + "}"
