"""`deeplink pytorch-tests --sources`: files of a checkout on the device by its own name and on the
plain CPU, compared; what is known to fail; the lists that other tools read."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from deeplink import cli

# One class as PyTorch's own are: a test of every fate on the device, and what the CPU makes of it.
DEVICES = """
import ctypes, time
import torch
from torch.testing._internal.common_device_type import (
    dtypes, instantiate_device_type_tests, onlyCPU, onlyCUDA,
)
from torch.testing._internal.common_utils import TestCase, parametrize

class TestFates(TestCase):
    def test_a_passes(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, torch.device(device).type)

    def test_b_fails_on_the_device(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_c_crashes(self, device):
        if torch.device(device).type != "cpu":
            ctypes.string_at(0)

    def test_d_hangs(self, device):
        if torch.device(device).type != "cpu":
            time.sleep(600)

    def test_e_fails_everywhere(self, device):
        self.fail("always")

    @onlyCPU
    def test_f_is_skipped(self, device):
        pass

    @onlyCUDA
    def test_g_is_for_cuda(self, device):
        self.fail("never here")

    @dtypes(torch.float32, torch.int64)
    @parametrize("size", [0, 2])
    def test_h_known(self, device, dtype, size):
        self.assertTrue(torch.device(device).type == "cpu" or dtype == torch.float32)

class TestPlain(TestCase):
    def test_of_no_device(self):
        self.fail("made for no device")

instantiate_device_type_tests(TestFates, globals())
"""
# A file as torch's example device has them: it names the device, and no class is made for one.
EXAMPLE = """
import torch
import torch_openreg
from torch.testing._internal.common_utils import TestCase

class TestExample(TestCase):
    def test_name(self):
        x = torch.ones(2, device="openreg:0")
        self.assertEqual((x.device.type, torch.openreg.current_device()), ("openreg", 0))
        self.assertIs(torch_openreg, torch.openreg)
"""
# A file that leaves this device out as a whole.
FOR_OTHERS = """
import unittest
raise unittest.SkipTest("for other devices")
"""
GAPS = """
[[device.skip]]
op = "linalg.eig"
dtype = "*"
reason = "no eigenvalues on the chip"

[[device.tolerance]]
op = "tanh"
dtype = "float32"
bound = 2e-3
reason = "a table"

[[pytorch_tests.skip]]
test = "::test_d_hangs"
reason = "would hang"

[[pytorch_tests.gap]]
test = "test_fates.py::TestFates.*::test_(c_crashes|h_known_.*int64)"
kind = "notyet"
reason = "the chip has no int64"

[[pytorch_tests.gap]]
test = "test_fates.py::.*::test_a_passes"
kind = "todo"
reason = "was wrong once"

[[pytorch_tests.gap]]
test = "test_other.py::"
kind = "never"
reason = "another file"
"""


@pytest.fixture(scope="module")
def results() -> ModuleType:
    """The module of the rows; to import it makes ditorch active, which is undone."""
    import ditorch
    from ditorch.pytorch_tests import results

    ditorch.undo()
    return results


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pytorch")
    example = root / "test/cpp_extensions/torch_openreg/tests"
    example.mkdir(parents=True)
    (root / "version.txt").write_text("1.2.3\n")
    (root / "test/test_fates.py").write_text(DEVICES)
    (example / "test_example.py").write_text(EXAMPLE)
    (root / "test/test_for_others.py").write_text(FOR_OTHERS)
    (root / "gaps.toml").write_text(GAPS)
    return root


def run(*arguments: str | Path) -> Result:
    from ditorch.__main__ import InThisProcess

    line = ["pytorch-tests", *map(str, arguments)]
    return CliRunner().invoke(cli.app, line, obj=InThisProcess())


@pytest.fixture(scope="module")
def finished(results: ModuleType, checkout: Path) -> tuple[Result, Path]:
    output = checkout / "rows.csv"
    files = (
        "test_fates.py",
        "test_for_others.py",
        "cpp_extensions/torch_openreg/tests/test_example.py",
    )
    line = ("--sources", checkout, "--files", *files, "--timeout", "20", "-o", output)
    return run(*line, "--config", checkout / "gaps.toml", "-j", "2"), output


FATES = {
    "TestFatesPRIVATEUSE1 test_a_passes_dipu passed",
    "TestFatesPRIVATEUSE1 test_b_fails_on_the_device_dipu failed",
    "TestFatesPRIVATEUSE1 test_c_crashes_dipu error",
    "TestFatesPRIVATEUSE1 test_d_hangs_dipu skipped",
    "TestFatesPRIVATEUSE1 test_e_fails_everywhere_dipu failed",
    "TestFatesPRIVATEUSE1 test_f_is_skipped_dipu skipped",
    "TestFatesPRIVATEUSE1 test_g_is_for_cuda_dipu skipped",
    "TestFatesPRIVATEUSE1 test_h_known_size_0_dipu_float32 passed",
    "TestFatesPRIVATEUSE1 test_h_known_size_0_dipu_int64 failed",
    "TestFatesPRIVATEUSE1 test_h_known_size_2_dipu_float32 passed",
    "TestFatesPRIVATEUSE1 test_h_known_size_2_dipu_int64 failed",
    "TestExample test_name passed",
    "TestFatesCPU test_a_passes_cpu passed",
    "TestFatesCPU test_b_fails_on_the_device_cpu passed",
    "TestFatesCPU test_c_crashes_cpu passed",
    "TestFatesCPU test_e_fails_everywhere_cpu failed",
    "TestFatesCPU test_h_known_size_0_cpu_float32 passed",
    "TestFatesCPU test_h_known_size_0_cpu_int64 passed",
    "TestFatesCPU test_h_known_size_2_cpu_float32 passed",
    "TestFatesCPU test_h_known_size_2_cpu_int64 passed",
}


def test_the_tests_of_a_device_run_on_it_and_on_the_cpu(
    results: ModuleType, finished: tuple[Result, Path]
) -> None:
    rows = [row for row in results.read(finished[1]) if row.test]
    assert {f"{row.class_name} {row.test} {row.result}" for row in rows} == FATES


def test_a_file_that_leaves_the_device_out_is_skipped(
    results: ModuleType, finished: tuple[Result, Path]
) -> None:
    (own,) = [r for r in results.read(finished[1]) if not r.test and r.device == "device"]
    assert (own.file, own.result, own.message) == (
        "test_for_others.py", "skipped", "for other devices"
    )  # fmt: skip


def test_what_the_cpu_passes_is_counted(finished: tuple[Result, Path]) -> None:
    summary = json.loads(finished[1].with_suffix(".json").read_text())
    fates = next(each for each in summary["files"] if each["file"] == "test_fates.py")
    assert fates == {
        "file": "test_fates.py", "passed": 3, "failed": 5, "skipped": 3, "cpu_passed": 7, "both": 3,
        "known": {"": 1, "notyet": 3}, "share": 42.86,
    }  # fmt: skip
    reasons = {each["test"].rpartition("::")[2]: each["reason"] for each in summary["failures"]}
    assert reasons["test_b_fails_on_the_device_dipu"] == ""
    assert reasons["test_c_crashes_dipu"] == "the chip has no int64"
    assert "test_e_fails_everywhere_dipu" not in reasons


def test_a_failure_that_is_not_listed_fails_the_run(finished: tuple[Result, Path]) -> None:
    done, _ = finished
    assert done.exit_code == 1
    assert "failing on the device alone, and not in gaps.toml: 1" in done.stdout
    assert "test_b_fails_on_the_device_dipu" in done.stdout


def test_a_listed_failure_that_passes_is_reported(finished: tuple[Result, Path]) -> None:
    assert "'test_fates.py::.*::test_a_passes' passes now; remove the entry" in finished[0].stdout
    assert "finds no test here" not in finished[0].stderr  # test_other.py was not loaded


def test_sources_of_another_version_are_reported(finished: tuple[Result, Path]) -> None:
    assert "the sources are of torch 1.2.3, and torch 2." in finished[0].stderr


def test_a_second_run_has_a_folder_of_its_own(
    results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("--suites", "optim_db", "--only", "steps_SGD_")
    for _ in range(2):
        assert run(*line).exit_code == 0
    assert "1 rows in pytorch_tests_results/latest/rows.csv" in run("--no-run").stdout
    assert len(list((tmp_path / "pytorch_tests_results").glob("20*"))) == 2


def test_the_list_of_disabled_tests(
    finished: tuple[Result, Path], checkout: Path, tmp_path: Path
) -> None:
    file = tmp_path / "disabled.json"
    done = run("--export-config", file, "-o", finished[1], "--config", checkout / "gaps.toml")
    assert done.exit_code == 0
    found = json.loads(file.read_text())
    assert found["test_d_hangs_dipu (__main__.TestFatesPRIVATEUSE1)"] == ["", ["would hang"]]
    assert found["test_h_known_size_0_dipu_int64 (__main__.TestFatesPRIVATEUSE1)"] == [
        "", ["notyet: the chip has no int64"]
    ]  # fmt: skip
    assert len(found) == 4


def test_the_configuration_for_pytorchs_own_machinery(
    finished: tuple[Result, Path], checkout: Path, tmp_path: Path
) -> None:
    from torch.testing._internal.common_device_type import PrivateUse1TestBase

    file = tmp_path / "configuration.py"
    run("--export-config", file, "-o", finished[1], "--config", checkout / "gaps.toml")
    try:
        made = runpy.run_path(str(file))
        assert PrivateUse1TestBase.test_exclusions == {
            "TestFates": ["test_c_crashes", "test_d_hangs"]
        }
        assert "add" in made["OP_ALLOWLIST"] and "linalg.eig" not in made["OP_ALLOWLIST"]
        assert list(made["OP_OVERRIDES"]) == ["tanh"]
    finally:
        PrivateUse1TestBase.set_test_configs()
    assert "2 more tests are left out in some of their variants only" in file.read_text()


def test_a_configuration_of_another_form_is_refused(finished: tuple[Result, Path]) -> None:
    done = run("--export-config", "a.yaml", "-o", finished[1])
    assert done.exit_code == 2
    assert "the suffix '.yaml' is neither .json nor .py" in done.stderr


UNUSED = [
    ("forward_(add|gelu)_", ["--only: 'gelu' matches no test; similar: nn_functional_gelu"]),
    ("forward_add|sigmiod", ["--only: 'sigmiod' matches no test; similar: sigmoid"]),
    ("forward_(add|sigmoid)_", []),
    ("forward_(add|nothing_(?!like)|this)_", []),  # nested: not taken apart
    ("add", []),
]
NAMES = [
    f"op_db::TestOpsCUDA::test_forward_{op}_cuda_float32"
    for op in ("add", "sigmoid", "nn_functional_gelu")
]


@pytest.mark.parametrize(("only", "sentences"), UNUSED)
def test_a_part_of_the_pattern_that_matches_nothing_is_named(
    results: ModuleType, only: str, sentences: list[str]
) -> None:
    from ditorch.pytorch_tests import patterns

    assert list(patterns.unused(only, NAMES)) == sentences


def test_a_folder_that_is_no_checkout_is_reported(results: ModuleType, tmp_path: Path) -> None:
    done = run("--sources", tmp_path)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "it is no PyTorch checkout" in said
    assert "git clone --depth 1 --branch v2" in said


def test_a_file_in_another_folder_is_suggested(results: ModuleType, checkout: Path) -> None:
    done = run("--sources", checkout, "--files", "test_example.py")
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "did you mean cpp_extensions/torch_openreg/tests/test_example.py?" in said
