# SPDX-License-Identifier: Apache-2.0
"""Sources of tests: a suite of torch's wheel, or a file of a PyTorch checkout, on one side."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.vendor import Vendor
from ditorch.pytorch_tests import builtin
from ditorch.pytorch_tests.results import CPU, DEVICE, HOST, Test

# a dtype in the name of a generated test: test_add_cuda_float32
_DTYPE = re.compile(
    r"_(bool|u?int(?:8|16|32|64)|b?float(?:16|32|64)|complex(?:32|64|128)"
    r"|float8_\w+?|q?u?int(?:4|8|32))(?=_|$)"
)
PRIVATE = "privateuse1"  # torch's name of a device of a package
# device types that torch's machinery of tests has classes for
IN_TORCH = ("cpu", "cuda", "xpu", "hpu", "mps")
# torch's own example of a device: its tests are written for the name "openreg"
EXAMPLE, EXAMPLE_MODULE, EXAMPLE_FOLDER = "openreg", "torch_openreg", "torch_openreg/tests"
CLONE = "git clone --depth 1 --branch v{version} https://github.com/pytorch/pytorch"


@dataclass(frozen=True)
class Source:
    """The name of a suite; or, with `root`, a file in the test folder of a checkout.

    `side` is where its tests run: "cuda" (ditorch), "device" (the device by its own name), or
    "cpu" (a process that loads no device).
    """

    name: str
    root: str = ""
    side: str = "cuda"
    every_class: bool = False  # classes that are not made for a device as well

    @property
    def for_example(self) -> bool:
        """Whether the tests are those of torch's example device, which the CPU does not have."""
        return EXAMPLE_FOLDER in f"{self.root}/{self.name}"

    def values(self, vendor: Vendor) -> dict[str, str]:
        """Return the environment of a process that runs this source."""
        own = vendor.device if vendor.device in IN_TORCH else PRIVATE
        kind = {"cuda": "cuda", "device": own, "cpu": "cpu"}[self.side]
        found = {"PYTORCH_TESTING_DEVICE_ONLY_FOR": kind if self.root else ""}
        if self.side != "cuda":
            found |= {"DITORCH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        if self.side == "device":
            found["PYTORCH_TESTING_DEVICE_FOR_CUSTOM"] = own
        return found


def load(source: Source, device: str = "") -> dict[Test, unittest.TestCase]:
    """Load every test of a source into this process; `device` is the type of the loaded device."""
    if not source.root:
        made = builtin.tests_of(builtin.SUITES[source.name]())
        return {_test(source.name, case, DEVICE): case for case in made}
    cases = list(_cases_of(source, device))
    wanted = device if source.side == "device" else source.side
    generic = [case for case in cases if _device_type(case) == wanted]
    plain = [case for case in cases if _device_type(case) == ""]
    found = {_test(source.name, case, CPU if source.side == "cpu" else DEVICE): case
             for case in generic}  # fmt: skip
    if source.every_class or not generic:
        found |= {_test(source.name, case, _side_of_plain(source, case)): case for case in plain}
    return found


def files_of(root: Path, wanted: Iterable[str]) -> list[Source]:
    """List test files of a checkout: the requested ones, else every test_*.py at the top level."""
    folder = root / "test" if (root / "test").is_dir() else root
    files = {name: folder / name for name in wanted}
    if not files:
        files = {path.name: path for path in sorted(folder.glob("test_*.py"))}
    for name, path in files.items():
        if not path.is_file():
            near = sorted(folder.rglob(Path(name).name))[:1]
            hint = f"did you mean {near[0].relative_to(folder)}?" if near else ""
            raise DeeplinkError(
                _("{root} has no {name}.").format(root=root, name=name), hint or how_to_get()
            )
    if not files:
        raise DeeplinkError(
            _("{root} has no test_*.py: it is no PyTorch checkout.").format(root=root), how_to_get()
        )
    return [Source(name, str(folder.resolve())) for name in files]


def how_to_get() -> str:
    """Return the command that gets the sources of the installed torch."""
    return f"get the sources of this torch: {CLONE.format(version=_installed())}"


def version_problem(root: Path) -> str:
    """Return a sentence about sources of another version than the installed torch; else ""."""
    file = root / "version.txt"
    if not file.is_file():
        file = root.resolve().parent / "version.txt"
    found = file.read_text("utf-8").strip() if file.is_file() else ""
    if not found or found.startswith(_installed()):
        return ""
    return (
        f"the sources are of torch {found}, and torch {torch.__version__} is installed: tests of "
        f"what one of them lacks fail on the CPU, too. To {how_to_get()}"
    )


def _installed() -> str:
    return str(torch.__version__).partition("+")[0]


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
    parts = re.split(r"_(?:cuda|cpu|meta|xpu|dipu|npu)(?=_|$)", name)
    return set(_DTYPE.findall(f"_{parts[-1]}"))


def _cases_of(source: Source, device: str) -> Iterator[unittest.TestCase]:
    path = Path(source.root) / source.name
    os.chdir(source.root)  # tests open files by names relative to it
    sys.path[:0] = [str(path.parent), source.root]
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    if source.for_example and source.side == "device":
        _execute_for(device, module, path)
    else:
        spec.loader.exec_module(module)
    yield from _flat(unittest.defaultTestLoader.loadTestsFromModule(module))


def _execute_for(device: str, module: ModuleType, path: Path) -> None:
    """Execute a test file of torch's example device, with the name of this device instead."""
    text = path.read_text("utf-8")
    for name, own_name in ((EXAMPLE, device), (EXAMPLE.upper(), device.upper())):
        text = re.sub(rf"(?<![A-Za-z]){name}(?![A-Za-z_])", own_name, text)
    own = torch.get_device_module(device)
    sys.modules[EXAMPLE_MODULE] = sys.modules[f"torch_{device}"] = own
    exec(compile(text, str(path), "exec"), module.__dict__)


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for each in suite:
        yield from _flat(each)


def _device_type(case: unittest.TestCase) -> str:
    """Return the device type that the class of a test is made for; "" for a plain class."""
    found = getattr(type(case), "device_type", "")
    if found == PRIVATE:  # torch sets the name of the device when the first class is set up
        return str(torch._C._get_privateuse1_backend_name())
    return found if isinstance(found, str) else ""


def _side_of_plain(source: Source, case: unittest.TestCase) -> str:
    if source.side == "cpu":
        return CPU
    about_cuda = re.search(r"cuda|gpu", f"{type(case).__name__}.{case.id()}", re.IGNORECASE)
    return HOST if source.every_class and not about_cuda else DEVICE


def _test(file: str, case: unittest.TestCase, device: str) -> Test:
    return Test(file, type(case).__name__, case.id().rpartition(".")[2], device)
