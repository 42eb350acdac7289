"""Vendors that are broken before the first call: the command reports the error and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from diopi import cabi
from diopi.conformance import command
from diopi.conformance.results import results
from tests.diopi.compiled import IMPLEMENTED, library

NEG = """
DIOPI_API diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                diopiConstTensorHandle_t input);
diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    (void)ctx;
    void* to; const void* from; diopiSize_t shape, step[2];
    diopiGetTensorData(out, &to);
    diopiGetTensorDataConst(input, &from);
    diopiGetTensorShape(input, &shape);
    diopiGetTensorStride(out, &step[0]);
    diopiGetTensorStride(input, &step[1]);
    int64_t count;
    diopiGetTensorNumel(input, &count);
    for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, at[2] = {0, 0};
        for (int64_t d = shape.len - 1; d >= 0; --d) {
            for (int side = 0; side < 2; ++side)
                at[side] += rest % shape.data[d] * step[side].data[d];
            rest /= shape.data[d];
        }
        ((float*)to)[at[0]] = -((const float*)from)[at[1]];
    }
    return diopiSuccess;
}
"""


def vendor(folder: Path, name: str, library_path: Path | None, config: str = "") -> str:
    """A module of that name in the folder of the config; return the value of `--vendor` for it."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").touch()
    body = "def neg(input):\n    return -input\n"
    if library_path:
        body = f"def library():\n    return {str(library_path)!r}\n"
    (package / "kernels.py").write_text(body)
    if config:
        (package / "convert_config.yaml").write_text(config)
    return f"{name}.kernels"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_a_library_lacks_is_not_run_and_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = vendor(folder, "acme_few", library(folder, IMPLEMENTED + NEG))
    line = ["--vendor", name, "--tier", "smoke", "--dtypes", "float32", "--jobs", "1"]
    assert command.main([*line, "--ops", "neg", "sort", "--results", str(folder / "out")]) == 0
    assert "runs 1 of 2 ops" in capsys.readouterr().out
    ran = [r for r in results.read(folder / "out" / "results.jsonl") if r.status == "passed"]
    assert ran and {result.op for result in ran} == {"neg"}


def test_a_library_of_another_abi_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = (cabi.include() / "diopi_runtime.h").read_text()
    (folder / "diopi_runtime.h").write_text(header.replace("ABI_VERSION 1u", "ABI_VERSION 99u"))
    source = IMPLEMENTED.replace("<diopi.h>", '"diopi_runtime.h"') + NEG
    name = vendor(folder, "acme_abi", library(folder, source))
    assert command.main(["--vendor", name, "--ops", "neg"]) == 2
    assert "speaks ABI 99; this diopi speaks ABI 1" in capsys.readouterr().err


def test_a_broken_config_is_reported_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "- diopiNeg:\n    dtype: (float64)->float31\n"
    name = vendor(folder, "acme_yaml", None, config)
    assert command.main(["--vendor", name, "--ops", "neg"]) == 2
    said = capsys.readouterr().err
    assert "convert_config.yaml" in said and "float31" in said


def test_a_module_that_does_not_load_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = vendor(folder, "acme_import", None)
    (folder / "acme_import" / "kernels.py").write_text("import no_such_driver\n")
    assert command.main(["--vendor", name, "--ops", "neg"]) == 2
    said = capsys.readouterr().err
    assert "acme_import.kernels" in said and "No module named 'no_such_driver'" in said
