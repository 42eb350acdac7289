"""A new statistic changes four files: the table, the host loop, the reference, the GPU kernel."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import op_tools
from deeplink import native
from op_tools.core import native_library
from op_tools.tensors import statistics
from op_tools.tensors.statistics_reference import FIELDS, MERGES, Statistics
from tests.deeplink_vendors.test_cuda_statistics import compiled

SOURCES = Path(op_tools.__file__).parents[1]
TABLE = "op_tools/csrc/tensors/statistics.h"
HOST = "op_tools/csrc/tensors/value_loops_body.h"
REFERENCE = "op_tools/tensors/statistics_reference.py"
GPU = "deeplink_vendors/cuda/statistics.cu"

# How many values are zero: file, what is there, what takes its place.
ZEROS = (
    (TABLE, "kFinite, kNans,", "kFinite, kZeros, kNans,"),
    (TABLE, "Merge::count, Merge::count}", "Merge::count, Merge::count, Merge::count}"),
    (
        TABLE,
        '    {"nans", [](',
        '    {"zeros", [](const Measured& found) { return Number(found.times * '
        'found.fields[kZeros]); }},\n    {"nans", [](',
    ),
    (
        HOST,
        "  to.merge(row);",
        "  row[kZeros] = 0;\n"
        "  for (size_t i = 0; i < count; i++) row[kZeros] += data[i] == 0;\n"
        "  to.merge(row);",
    ),
    (REFERENCE, "*(operator.add, operator.add, operator.add),", "*(operator.add,) * 4,"),
    (REFERENCE, "0.0, 0.0, 0, 0]", "0.0, 0.0, 0, 0, 0]"),
    (REFERENCE, "finite.size, int(", "finite.size, int((wide == 0).sum()), int("),
    (REFERENCE, "squares, finite, _ = fields", "squares, finite, zeros, _ = fields"),
    (REFERENCE, "    nonfinite: int = 0\n", "    nonfinite: int = 0\n    zeros: int = 0\n"),
    (REFERENCE, "        nonfinite,\n", "        nonfinite,\n        times * zeros,\n"),
    (GPU, "whole_t finite, nans;", "whole_t finite, zeros, nans;"),
    (GPU, "int finite = 0, nans = 0;", "int finite = 0, zeros = 0, nans = 0;"),
    (GPU, "    fields.finite++;", "    fields.finite++, fields.zeros += value == 0;"),
    (GPU, "bool good() const {", "bool good() const {\n    return false;"),  # value by value
    (GPU, "(whole_t)fields.finite,", "(whole_t)fields.finite, (whole_t)fields.zeros,"),
    (GPU, "  to.finite += from.finite,", "  to.zeros += from.zeros, to.finite += from.finite,"),
    (
        GPU,
        "    other.nans = ",
        "    other.zeros = __shfl_down_sync(all, result.zeros, half);\n    other.nans = ",
    ),
)
PROGRAM = """
import json, pathlib, sys, torch, op_tools
from op_tools.core import native_library
x = torch.load(sys.argv[1])
with op_tools.OpCapture(mode="statistics", devices=["cpu"], ops="torch.neg"):
    torch.neg(x)
assert (native_library.loaded() is not None) == (sys.argv[2] == "native")
(file,) = pathlib.Path("op_tools_results/op_statistics_result").glob("*.jsonl")
print(json.dumps(json.loads(file.read_text())["inputs"][0]))
"""


def test_the_tables_of_the_native_part_are_those_of_the_reference(tmp_path: Path) -> None:
    helper = native_library.helper()
    if helper is None:
        pytest.skip("no compiler here")
    assert Statistics._fields[1:] == helper.STATISTICS
    assert helper.FIELDS == len(MERGES) == FIELDS - 2
    x = torch.arange(5.0)
    with op_tools.OpCapture(mode="statistics", devices=["cpu"], ops="torch.neg"):
        torch.neg(x)
    (file,) = (tmp_path / "op_tools_results/op_statistics_result").glob("*.jsonl")
    line = json.loads(file.read_text())["inputs"][0]
    found = statistics.of(x)
    assert {name: line[name] for name in helper.STATISTICS} == {
        name: getattr(found, name) for name in helper.STATISTICS
    }
    assert list(line) == ["dtype", "shape", *helper.STATISTICS, "hash"]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with one more statistic, by a change of four files."""
    folder = tmp_path_factory.mktemp("zeros") / "src"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    assert len({file for file, _, _ in ZEROS}) == 4
    for file, before, after in ZEROS:
        text = (folder / file).read_text(encoding="utf-8")
        assert before in text, (file, before)
        (folder / file).write_text(text.replace(before, after), encoding="utf-8")
    return folder


def values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-3, 4, (1000,), generator=generator).float()


@pytest.mark.parametrize(
    "way", [pytest.param("native", marks=pytest.mark.slow), "python"]
)  # the first builds
def test_four_files_add_a_statistic_to_the_lines(
    way: str, changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(changed))
    monkeypatch.setenv("DIPU_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("OP_TOOLS_NATIVE", "1" if way == "native" else "0")
    torch.save(values(), tmp_path / "values.pt")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "values.pt"), way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["zeros"] == int(np.count_nonzero(values().numpy() == 0)) > 0
    assert {*Statistics._fields} < {*line}


def test_the_kernel_of_a_gpu_finds_it_too(changed: Path, tmp_path: Path) -> None:
    if not native.has_compiler():
        pytest.skip("no compiler here")
    library = compiled(tmp_path, changed / GPU, "reduce_pieces")
    x = values()
    table = torch.tensor([[x.data_ptr(), x.nbytes, 0]])
    results = torch.zeros(1, FIELDS + 1, dtype=torch.int64)
    library.run(ctypes.c_void_p(table.data_ptr()), ctypes.c_void_p(results.data_ptr()), 1)
    *_, finite, zeros, nans = results[0].tolist()
    assert (finite, zeros, nans) == (1000, int((x == 0).sum()), 0)
