"""`deeplink pytorch-tests`: suites and checkouts, crashes, hangs, resuming, diffs, causes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from deeplink import cli
from deeplink.commands import host
from deeplink.errors import DeeplinkError

if TYPE_CHECKING:
    from ditorch.pytorch_tests.results import Row


@pytest.fixture(scope="module")
def results() -> ModuleType:
    """The module of the rows; to import it makes ditorch active, which is taken back."""
    import ditorch
    from ditorch.pytorch_tests import results

    ditorch.undo()
    return results


@pytest.fixture(scope="module")
def causes(results: ModuleType) -> ModuleType:
    from ditorch.pytorch_tests import causes

    return causes


def run(*arguments: str | Path) -> Result:
    """The command in this process; its workers are processes of their own."""
    from ditorch.__main__ import InThisProcess

    return CliRunner().invoke(cli.app, ["pytorch-tests", *map(str, arguments)], obj=InThisProcess())


def by_name(results: ModuleType, path: Path) -> dict[str, Row]:
    return {row.test: row for row in results.read(path) if row.device != "cpu"}


# A checkout with a test of every fate, and a file that cannot be imported.

PLANTED = """
import ctypes, time, unittest
import torch

class TestPlantedCUDA(unittest.TestCase):
    device_type = "cuda"

    def test_a_passes(self):
        self.assertEqual(torch.ones(2, device="cuda").sum().item(), 2)

    def test_b_fails(self):
        torch.testing.assert_close(torch.ones(1, device="cuda"), torch.zeros(1, device="cuda"))

    def test_c_crashes(self):
        ctypes.string_at(0)

    def test_d_hangs(self):
        time.sleep(600)

    @unittest.skip("not today")
    def test_e_skipped(self):
        pass

    def test_f_misses_a_name(self):
        torch.cuda.no_such_name()

    def test_g_passes_after_all_that(self):
        pass

class TestPlain(unittest.TestCase):
    def test_on_the_host(self):
        pass
"""


# A file as PyTorch's own are: a generic class, made into one per device, with dtypes and ops.
STYLE = """
# Owner(s): ["module: tests"]
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast, dtypes, dtypesIfCUDA, instantiate_device_type_tests, onlyCPU,
    onlyCUDA, onlyNativeDeviceTypes, ops, skipCUDAIfNoMagma,
)
from torch.testing._internal.common_methods_invocations import binary_ufuncs
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

class TestStyle(TestCase):
    @dtypes(torch.float32, torch.int64)
    @dtypesIfCUDA(torch.float32, torch.float16)
    def test_add(self, device, dtype):
        x = make_tensor((4, 5), device=device, dtype=dtype)
        self.assertEqual(x.device.type, torch.device(device).type)
        self.assertEqual(x + x, x * 2)

    @onlyCUDA
    def test_streams(self, device):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.ones(3, device=device)
        torch.cuda.synchronize()
        self.assertTrue(TEST_CUDA and x.is_cuda)
        self.assertEqual(x.cpu(), torch.ones(3))

    @onlyCPU
    def test_host(self, device):
        self.assertEqual(torch.ones(1, device=device).device.type, "cpu")

    @deviceCountAtLeast(2)
    @onlyCUDA
    def test_two(self, devices):
        x = torch.ones(1, device=devices[1]).to(devices[0])
        self.assertEqual(x.device, torch.device(devices[0]))

    @onlyNativeDeviceTypes
    @parametrize("size", [0, 2])
    def test_sizes(self, device, size):
        self.assertEqual(torch.zeros(size, device=device).sum(), 0)

    @ops([op for op in binary_ufuncs if op.name == "atan2"], allowed_dtypes=[torch.float32])
    def test_reference(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            op(sample.input, *sample.args, **sample.kwargs)

    def test_wrong(self, device):
        self.assertEqual(torch.ones(1, device=device), torch.zeros(1, device=device))

    @skipCUDAIfNoMagma
    def test_solve(self, device):
        a = torch.eye(2, device=device) * 2
        self.assertEqual(torch.linalg.solve(a, a), torch.eye(2))

instantiate_device_type_tests(TestStyle, globals())

if __name__ == "__main__":
    run_tests()
"""


@pytest.fixture(scope="module")
def checkout(results: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pytorch") / "test"
    root.mkdir()
    (root / "test_planted.py").write_text(PLANTED)
    (root / "test_broken.py").write_text("import no_such_module_anywhere\n")
    return root


@pytest.fixture(scope="module")
def finished(checkout: Path) -> tuple[Result, Path]:
    output = checkout.parent / "rows.csv"
    line = ("--sources", checkout, "--cuda", "-o", output, "-j", "2", "--timeout", "2")
    return run(*line), output


FATES = {
    "test_a_passes": ("passed", "", ""),
    "test_b_fails": ("failed", "chip", "values"),
    "test_c_crashes": ("error", "chip", "crash"),
    "test_d_hangs": ("error", "chip", "hang"),
    "test_e_skipped": ("skipped", "", ""),
    "test_f_misses_a_name": ("error", "shim", "missing torch.cuda name"),
    "test_g_passes_after_all_that": ("passed", "", ""),
    "test_on_the_host": ("passed", "", ""),
    "": ("error", "chip", "other"),  # the file that cannot be imported
}


def test_each_test_of_a_checkout_is_one_row(
    results: ModuleType,
    finished: tuple[Result, Path],
) -> None:
    done, output = finished
    rows = by_name(results, output)
    assert {name: (row.result, row.cause, row.reason) for name, row in rows.items()} == FATES
    assert done.exit_code == 1
    assert "SIGSEGV" in rows["test_c_crashes"].message
    assert rows["test_d_hangs"].message == "no result within 2 s"
    assert rows["test_e_skipped"].message == "not today"
    assert "No module named 'no_such_module_anywhere'" in rows[""].message
    assert {row.file for row in rows.values()} == {"test_planted.py", "test_broken.py"}


STYLED = """
    TestStyleCUDA test_add_cuda_float16 passed
    TestStyleCUDA test_add_cuda_float32 passed
    TestStyleCUDA test_reference_atan2_cuda_float32 passed
    TestStyleCUDA test_sizes_size_0_cuda passed
    TestStyleCUDA test_sizes_size_2_cuda passed
    TestStyleCUDA test_solve_cuda passed
    TestStyleCUDA test_streams_cuda passed
    TestStyleCUDA test_two_cuda passed
    TestStyleCUDA test_wrong_cuda failed
    TestStyleCUDA test_host_cuda skipped
    TestStyleCPU test_add_cpu_float32 passed
    TestStyleCPU test_reference_atan2_cpu_float32 passed
    TestStyleCPU test_sizes_size_0_cpu passed
    TestStyleCPU test_sizes_size_2_cpu passed
    TestStyleCPU test_solve_cpu passed
    TestStyleCPU test_streams_cpu skipped
    TestStyleCPU test_two_cpu skipped
    TestStyleCPU test_wrong_cpu failed
"""


def test_a_file_in_pytorchs_own_style_runs_for_the_device_and_the_cpu(
    results: ModuleType, tmp_path: Path
) -> None:
    root, output = tmp_path / "test", tmp_path / "rows.csv"
    root.mkdir()
    (root / "test_style.py").write_text(STYLE)
    done = run("--sources", root, "--cuda", "-o", output, "-j", "1")
    found = {f"{row.class_name} {row.test} {row.result}" for row in results.read(output)}
    assert found == {line.strip() for line in STYLED.strip().splitlines()}
    wrong = {row.test: row for row in results.read(output) if row.bad}
    assert (wrong["test_wrong_cuda"].cause, wrong["test_wrong_cuda"].reason) == ("chip", "values")
    assert done.exit_code == 0  # the CPU fails this test, too


def test_device_rows_are_counted_apart(
    results: ModuleType,
    finished: tuple[Result, Path],
) -> None:
    done, output = finished
    lines = {(line.file, line.device): line for line in results.summary(results.read(output))}
    assert lines["test_planted.py", "device"].counts == {
        "passed": 2, "failed": 1, "error": 3, "skipped": 1,
    }  # fmt: skip
    assert lines["test_planted.py", "host"].counts == {"passed": 1}
    assert re.search(r"total +device +2 +1 +1 +4 +4 +1", done.stdout)
    assert re.search(r"total +host +1 +0 +0 +0", done.stdout)


def test_what_is_in_the_csv_is_not_run_again(
    results: ModuleType,
    checkout: Path,
    finished: tuple[Result, Path],
    tmp_path: Path,
) -> None:
    output = tmp_path / "rows.csv"
    kept = finished[1].read_text().splitlines(keepends=True)
    with output.open("w") as file:  # all but one, and a line that was cut off
        file.writelines(line for line in kept if "test_a_passes" not in line)
        file.write("test_planted.py,TestPlantedCUDA,test_a_pas")
    done = run(
        "--sources", checkout, "--cuda", "--files", "test_planted.py", "-o", output, "--resume"
    )
    assert "ran 1: 1 passed" in done.stderr
    assert {name: row.result for name, row in by_name(results, output).items()} == {
        name: fate[0] for name, fate in FATES.items()
    }


def test_an_earlier_run_is_not_overwritten(results: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    output.write_text("precious")
    done = run("--suites", "optim_db", "-o", output)
    assert done.exit_code == 2
    assert (
        "--resume continues it, --overwrite deletes its rows, --output names another file"
        in done.stderr
    )
    assert output.read_text() == "precious"


DEVICE = """
[pytorch_tests]
dtypes = ["float32"]

[[pytorch_tests.skip]]
test = "_SGD_"
reason = "the chip has no SGD"

[[pytorch_tests.tolerance]]
test = "misspelt"
dtype = "float32"
bound = 1e-2
reason = "its exp is a table"
"""


def test_the_built_in_suites_run_on_the_device(results: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    only = r"ward_(add|empty|nn_functional_dropout|jiterator_unary)_cuda|_(nn_Linear|SGD)_cuda"
    config = tmp_path / "device.toml"
    config.write_text(DEVICE)
    line = [sys.executable, "-m", "ditorch", "pytorch-tests", "--only", only, "--config", config]
    done = subprocess.run(
        [*line, "-o", str(output), "-j", "1"], capture_output=True, text=True, check=False
    )
    rows = by_name(results, output)
    left_out = rows.pop("test_steps_SGD_cuda_float32")
    assert (left_out.result, left_out.message) == ("skipped", "left out: the chip has no SGD")
    assert "'misspelt' finds no test here" in done.stderr
    # CUDA C++: without an equivalent, and not because of the CPU
    kernel = rows.pop("test_forward_jiterator_unary_cuda_float32")
    assert (kernel.result, kernel.cause, kernel.reason) == ("error", "shim", "no equivalent")
    assert {name: row.result for name, row in rows.items()} == dict.fromkeys(
        (
            "test_forward_add_cuda_float32",
            "test_backward_add_cuda_float32",
            "test_forward_empty_cuda_float32",
            "test_forward_nn_functional_dropout_cuda_float32",
            "test_backward_nn_functional_dropout_cuda_float32",
            "test_forward_backward_nn_Linear_cuda_float32",
        ),
        "passed",
    )
    assert {row.file for row in rows.values()} == {"op_db", "module_db"}
    assert {row.device for row in rows.values()} == {"device"}
    assert done.returncode == 1, done.stderr


def test_a_cpu_that_dies_of_what_it_announces_is_spared(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deeplink.testing.workers import spare_the_cpu

    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert spare_the_cpu("pass") == ""
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    said = spare_the_cpu("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert said.endswith("it is run with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


@pytest.mark.parametrize("arguments", [["--resume"], ["--only", "add", "-j", "4"]])
def test_deeplink_hands_the_command_over(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []

    def fake(line: list[str]) -> int:
        lines.append(line)
        return 7

    monkeypatch.setattr(host.children, "run", fake)
    done = CliRunner().invoke(cli.app, ["pytorch-tests", *arguments])
    assert lines == [[sys.executable, "-m", "ditorch", "pytorch-tests", *arguments]]
    assert done.exit_code == 7


# Wrong use.

WRONG = [
    (("--suites", "op_bd"), "no suite 'op_bd'; there are: op_db, module_db, optim_db"),
    (
        ("--files", "test_nn.py"),
        "Hint: get the sources of this torch: git clone --depth 1 --branch v",
    ),
    (("--sources", "nowhere", "--files", "test_nn.py"), "nowhere has no test_nn.py"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=["suite", "files", "checkout"])
def test_wrong_use_is_reported(
    results: ModuleType, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = run(*arguments, "-o", tmp_path / "rows.csv")
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


# Rows, files, differences: pure.


def row(test: str, result: str, message: str = "") -> Row:
    from ditorch.pytorch_tests.results import Row

    return Row("test_a.py", "TestA", test, "device", result, "0.100", message=message)


def test_rows_survive_the_csv(results: ModuleType, tmp_path: Path) -> None:
    rows = [row("test_a", "passed"), row("test_b", "failed", 'said "no", twice')]
    with results.Writer(tmp_path / "rows.csv", append=False) as writer:
        for each in rows:
            writer.add(each)
    assert results.read(tmp_path / "rows.csv") == rows
    header = (tmp_path / "rows.csv").read_text().splitlines()[0]
    assert header.split(",")[:6] == ["file", "class_name", "test", "device", "result", "seconds"]


def test_the_last_row_of_a_test_counts(results: ModuleType, tmp_path: Path) -> None:
    with results.Writer(tmp_path / "rows.csv", append=False) as writer:
        writer.add(row("test_a", "failed"))
        writer.add(row("test_a", "passed"))
    assert results.read(tmp_path / "rows.csv") == [row("test_a", "passed")]


def test_a_file_that_could_be_loaded_later_is_forgiven(results: ModuleType, tmp_path: Path) -> None:
    with results.Writer(tmp_path / "rows.csv", append=False) as writer:
        writer.add(row("", "error", "ModuleNotFoundError: No module named 'expecttest'"))
        writer.add(row("test_a", "passed"))
    assert results.read(tmp_path / "rows.csv") == [row("test_a", "passed")]


def test_a_csv_of_something_else_is_refused(results: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("name,value\na,1\n")
    with pytest.raises(DeeplinkError, match="has the columns name, value; expected: file"):
        results.read(tmp_path / "other.csv")


def test_a_diff_shows_what_changed(results: ModuleType) -> None:
    old = [row("test_a", "passed"), row("test_b", "failed"), row("test_c", "failed"),
           row("test_d", "passed"), row("test_e", "skipped")]  # fmt: skip
    new = [row("test_a", "error"), row("test_b", "passed"), row("test_c", "failed"),
           row("test_e", "failed"), row("test_f", "failed"), row("test_g", "passed")]  # fmt: skip
    changed = results.diff(old, new)
    assert [each.test for each in changed.newly_failing] == ["test_a", "test_e", "test_f"]
    assert [each.test for each in changed.newly_passing] == ["test_b"]
    assert [each.test for each in changed.disappeared] == ["test_d"]


@pytest.mark.parametrize(("before", "code"), [("failed", 0), ("passed", 1)])
def test_with_a_diff_only_what_is_new_fails(
    results: ModuleType, tmp_path: Path, before: str, code: int
) -> None:
    for name, result in (("old.csv", before), ("new.csv", "failed")):
        with results.Writer(tmp_path / name, append=False) as writer:
            writer.add(row("test_a", result))
    done = run("--no-run", "-o", tmp_path / "new.csv", "--diff", tmp_path / "old.csv")
    assert done.exit_code == code
    assert f"newly failing: {code}" in done.stdout


NAMES = [
    ("test_forward_add_cuda_float32", {"float32"}),
    ("test_forward_H_cuda_bfloat16", {"bfloat16"}),
    ("test_cast_cuda_int64_float16", {"int64", "float16"}),
    ("test_forward_uint8_cuda_int8", {"int8"}),
    ("test_sum_to_size", set()),
]


@pytest.mark.parametrize(("name", "dtypes"), NAMES)
def test_the_dtypes_of_a_test_are_in_its_name(
    results: ModuleType, name: str, dtypes: set[str]
) -> None:
    from ditorch.pytorch_tests.sources import dtypes_in

    assert dtypes_in(name) == dtypes


# Causes: one case per rule, at least.

CASES = [
    ("the process died with SIGSEGV: Fatal Python error", "", "chip", "crash"),
    ("no result within 120 s", "", "chip", "hang"),
    ("Unsupported: torch.cuda.mem has no equivalent here; called at a:1.", "", "shim",
     "no equivalent"),
    ("TypeError: f() takes 1 argument", "ditorch/surface.py:12", "shim", "raised in ditorch"),
    ("TypeError: f() takes 1 argument", "<ditorch empty_cache>:2", "shim", "raised in ditorch"),
    ("RuntimeError: the queue is full", "ditorch/surface.py:12", "chip", "other"),
    ("RuntimeError: DIPU: Double tensors are not supported by this device", "", "chip",
     "missing kernel"),
    ("TypeError: f() takes 1 argument", "ditorch/pytorch_tests/builtin.py:9", "chip", "other"),
    ("NotImplementedError: Could not run 'aten::foo' with arguments from the 'PrivateUse1' backend."
     " 'aten::foo' is only available for these backends: [CPU, CUDA]", "", "chip",
     "missing kernel"),
    ('RuntimeError: "lu_cpu" not implemented for \'Half\'', "", "chip", "missing kernel"),
    ("AttributeError: module 'torch.cuda' has no attribute 'foo'", "", "shim",
     "missing torch.cuda name"),
    ("AttributeError: module 'torch.cuda.amp' has no attribute 'x'", "", "shim",
     "missing torch.cuda name"),
    ("AttributeError: module 'torch._C' has no attribute '_cuda_setStream'", "", "shim",
     "missing torch._C name"),
    ("ImportError: cannot import name '_cuda_x' from 'torch._C'", "", "shim",
     "missing torch._C name"),
    ("AssertionError: Torch not compiled with CUDA enabled", "", "shim", "not compiled with CUDA"),
    ("torch.jit.frontend.NotSupportedError: Compiled functions", "", "shim", "jit.script"),
    ("RuntimeError: expected a value", "torch/jit/_recursive.py:40", "shim", "jit.script"),
    ("AssertionError: 'cuda:0' != 'dipu:0'", "", "shim", "device identity"),
    ("AssertionError: device(type='privateuseone', index=0) != device(type='cuda', index=0)", "",
     "shim", "device identity"),
    ("RuntimeError: Expected all tensors to be on the same device, but found two", "", "shim",
     "device identity"),
    ("AssertionError: The values for attribute 'device' do not match: cpu != dipu:0.", "", "shim",
     "device identity"),
    ("OutOfMemoryError: dipu out of memory", "", "chip", "out of memory"),
    ("AssertionError: Tensor-likes are not close! Mismatched elements: 1 / 4", "", "chip",
     "values"),
    ("AssertionError: 3 != 4", "", "chip", "values"),
    ("ValueError: something else", "torch/nn/functional.py:3", "chip", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "where", "cause", "reason"), CASES)
def test_a_failure_is_the_chips_or_the_shims(
    causes: ModuleType, message: str, where: str, cause: str, reason: str
) -> None:
    found = causes.classify(message, where, "dipu")
    assert (found.cause, found.reason) == (cause, reason)


def test_every_rule_has_a_case(causes: ModuleType) -> None:
    decided = {causes.classify(message, where, "dipu") for message, where, *_ in CASES}
    assert decided == {*causes.RULES, causes.OTHER}


def test_torch_calls_this_chip_cuda_itself_so_nothing_is_confused(causes: ModuleType) -> None:
    found = causes.classify("AssertionError: 'cuda:0' != 'cuda:1'", "", "cuda")
    assert (found.cause, found.reason) == ("chip", "values")


# A device's own rules.


def test_a_tolerance_is_for_its_tests_and_its_dtype(results: ModuleType, tmp_path: Path) -> None:
    from ditorch.pytorch_tests import device_config

    path = tmp_path / "gaps.toml"
    path.write_text(DEVICE.replace("misspelt", "forward_exp_"))
    (entry,) = device_config.read(path).tolerances
    rules = [(entry.test, entry.dtype, entry.bound)]
    exp = results.Test("op_db", "TestOpsCUDA", "test_forward_exp_cuda_float32")
    add = results.Test("op_db", "TestOpsCUDA", "test_forward_add_cuda_float32")
    assert device_config.bounds(rules, exp) == {"float32": 1e-2}
    assert device_config.bounds(rules, add) == {}


SHARED = """
[device]
dtypes = ["float32"]

[[device.skip]]
op = "gelu"
dtype = "*"
reason = "no gelu"

[[device.tolerance]]
op = "linalg.norm"
dtype = "float32"
bound = 1e-2
reason = "summed in bfloat16"
"""


def test_what_every_suite_obeys_counts_here_too(results: ModuleType, tmp_path: Path) -> None:
    from ditorch.pytorch_tests import device_config

    path = tmp_path / "gaps.toml"
    path.write_text(SHARED)
    rules = device_config.read(path)
    gelu, norm, vector_norm = (
        results.Test("op_db", "TestOpsCUDA", f"test_forward_{name}_cuda_float32")
        for name in ("nn_functional_gelu", "linalg_norm", "linalg_vector_norm")
    )
    tolerances = [(each.test, each.dtype, each.bound) for each in rules.all_tolerances()]
    assert rules.dtypes == ("float32",)
    assert rules.skip(gelu).reason == "no gelu" and rules.skip(norm) is None
    assert device_config.bounds(tolerances, norm) == {"float32": 1e-2}
    assert device_config.bounds(tolerances, vector_norm) == {}
    assert rules.unmatched([]) == []  # they may be meant for another suite


WRONG_RULES = [
    ("[pytorch_tests]\nskips = []", "has skips; known: dtypes, skip, tolerance, gap"),
    ('[[pytorch_tests.skip]]\ntest = "a"', "should have exactly test, reason"),
    ('[[pytorch_tests.skip]]\ntest = "a"\nreason = ""', "needs a reason"),
    ('[[pytorch_tests.skip]]\ntest = "("\nreason = "b"', r"'\(' is no pattern"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_RULES)
def test_a_wrong_rule_is_reported(
    results: ModuleType, tmp_path: Path, text: str, message: str
) -> None:
    from ditorch.pytorch_tests import device_config

    path = tmp_path / "gaps.toml"
    path.write_text(text)
    with pytest.raises(DeeplinkError, match=message):
        device_config.read(path)
