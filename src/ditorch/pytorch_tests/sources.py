# SPDX-License-Identifier: Apache-2.0
"""Sources of tests: a suite of torch's wheel, or a file of a PyTorch checkout."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from ditorch.pytorch_tests import builtin
from ditorch.pytorch_tests.results import Test

# a dtype in the name of a generated test: test_add_cuda_float32
_DTYPE = re.compile(
    r"_(bool|u?int(?:8|16|32|64)|b?float(?:16|32|64)|complex(?:32|64|128)"
    r"|float8_\w+?|q?u?int(?:4|8|32))(?=_|$)"
)


@dataclass(frozen=True)
class Source:
    """The name of a suite; or, with `root`, a file in the test folder of a checkout."""

    name: str
    root: str = ""


def load(source: Source) -> dict[Test, unittest.TestCase]:
    """Load every test of a source into this process."""
    if source.root:
        cases: Iterable[unittest.TestCase] = _cases_of(source)
    else:
        cases = builtin.tests_of(builtin.SUITES[source.name]())
    return {_test(source.name, case): case for case in cases if not _a_twin(case)}


def files_of(root: Path, wanted: Iterable[str]) -> list[Source]:
    """List test files of a checkout: the requested ones, else every test_*.py at the top level."""
    names = list(wanted) or sorted(path.name for path in root.glob("test_*.py"))
    missing = [name for name in names if not (root / name).is_file()]
    if missing or not names:
        raise DeeplinkError(
            f"{root} has no {', '.join(missing) or 'test_*.py'}.",
            "--pytorch names the folder `test` of a PyTorch checkout.",
        )
    return [Source(name, str(root.resolve())) for name in names]


def selected(tests: Iterable[Test], only: str, dtypes: Iterable[str]) -> list[Test]:
    """Select tests whose name matches the pattern and whose dtypes, if any, are among `dtypes`."""
    pattern, wanted = re.compile(only), set(dtypes)
    return [
        test
        for test in tests
        if pattern.search(str(test)) and (not wanted or dtypes_in(test.name) <= wanted)
    ]


def dtypes_in(name: str) -> set[str]:
    """Return the dtypes at the end of a test's name."""
    return set(_DTYPE.findall(f"_{name.rpartition('_cuda_')[2]}"))


def _cases_of(source: Source) -> Iterator[unittest.TestCase]:
    path = Path(source.root) / source.name
    os.chdir(source.root)  # tests open files by names relative to it
    sys.path[:0] = [str(path.parent), source.root]
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield from _flat(unittest.defaultTestLoader.loadTestsFromModule(module))


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for each in suite:
        yield from _flat(each)


def _a_twin(case: unittest.TestCase) -> bool:
    """Whether the class is torch's copy for the chip's own name, next to the one for CUDA."""
    machinery = sys.modules.get("torch.testing._internal.common_device_type")
    if machinery is None or not torch.cuda.is_available():
        return False
    return isinstance(case, machinery.PrivateUse1TestBase)


def _test(file: str, case: unittest.TestCase) -> Test:
    kind, name = type(case).__name__, case.id().rpartition(".")[2]
    about = getattr(type(case), "device_type", None)
    if about is None:
        about = "cuda" if re.search(r"cuda|gpu", f"{kind}.{name}", re.IGNORECASE) else "cpu"
    return Test(file, kind, name, "cpu" if about in ("cpu", "meta") else "device")
