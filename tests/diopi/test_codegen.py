"""The generated files: current, compilable, and complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import diopi
from diopi import catalogue
from diopi.codegen import files, header, pages, protocol
from diopi.codegen.__main__ import main

OPS = diopi.all_ops()
INCLUDE = files.HEADER.parent
C = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", "c"]
CXX = ["g++", "-std=c++17", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", "c++"]


def test_every_generated_file_is_current() -> None:
    """Fix by `python -m diopi.codegen`."""
    done = subprocess.run(
        [sys.executable, "-m", "diopi.codegen", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "everything is up to date\n"), done.stdout


def test_a_stale_file_is_named_and_fixed(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(files, "HEADER", tmp_path / "diopi.h")
    assert main(["--check"]) == 1
    assert "out of date: diopi.h\nHint: run python -m diopi.codegen" in capsys.readouterr().out
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_a_page_of_a_family_that_is_gone_is_removed_and_no_other(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(files, "PAGES", tmp_path / "diopi")
    monkeypatch.setattr(files, "HEADER", tmp_path / "diopi.h")
    monkeypatch.setattr(files, "PROTOCOL", tmp_path / "protocol.py")
    files.write()
    gone, ours = tmp_path / "diopi" / "gone.md", tmp_path / "diopi" / "guide.md"
    gone.write_text(f"{pages.NOTE}\n# gone\n")
    ours.write_text("# By hand\n")
    assert files.write() == [gone]
    assert ours.exists()


@pytest.mark.parametrize("compiler", [C, CXX], ids=["c11", "c++17"])
def test_the_header_compiles_clean(compiler: list[str], tmp_path: Path) -> None:
    unit = tmp_path / "unit"
    unit.write_text(
        '#include "diopi.h"\n#include "diopi.h"\n'
        "diopiError_t diopiRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,\n"
        "    diopiConstTensorHandle_t input) { (void)ctx; (void)out; (void)input;\n"
        "    return diopiSuccess; }\n"
        "int has_softmax(void) { return diopiSoftmax != 0; }\n"
    )
    done = subprocess.run(
        [*compiler, f"-I{INCLUDE}", "-c", str(unit), "-o", str(tmp_path / "unit.o")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_may_define_any_subset(tmp_path: Path) -> None:
    unit, library = tmp_path / "unit.c", tmp_path / "libdiopi_impl.so"
    unit.write_text(
        '#include "diopi.h"\n'
        "int softmax_is_missing(void) { return diopiSoftmax == 0 && diopi_softmax == 0; }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{INCLUDE}", str(unit), "-o", str(library)],
                   check=True)  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c",
         f"import ctypes; print(ctypes.CDLL({str(library)!r}).softmax_is_missing())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "1\n"


def test_the_header_has_every_op_and_every_published_name() -> None:
    text = files.HEADER.read_text("utf-8")
    assert [n for n in OPS if f" diopi_{n}(" not in text] == []
    assert [n for n in catalogue.functions() if f" {n}(" not in text] == []


def test_an_implementation_finds_the_published_runtime() -> None:
    text = files.HEADER.read_text("utf-8") + (INCLUDE / "diopi_runtime.h").read_text("utf-8")
    assert [name for name in RUNTIME if f" {name}(" not in text and f"*{name}(" not in text] == []
    assert f"#define DIOPI_ABI_VERSION {header.ABI}u" in text


RUNTIME = """
diopiGetVersion diopiGetVendorName diopiGetImplVersion diopiGetLastErrorString
diopiGetTensorData diopiGetTensorDataConst diopiGetTensorShape diopiGetTensorStride
diopiGetTensorDtype diopiGetTensorDevice diopiGetTensorNumel diopiGetTensorElemSize
diopiGetTensorStoragePtr diopiGetTensorStorageOffset diopiGetTensorStorageNbytes
diopiGetTensorDeviceIndex diopiGetTensorCrowIndices diopiGetTensorColIndices diopiGetTensorValues
diopiIsTensorSparse diopiGetCurrentDeviceIndex diopiGetStream diopiRequireTensor
diopiRequireBuffer diopiGeneratorGetState diopiGeneratorSetState diopiGeneratorGetSeedAndOffset
diopiGeneratorSetSeedAndOffset diopiRecordStart diopiRecordEnd
""".split()


def test_a_declaration_says_what_may_be_null() -> None:
    assert header.declaration(diopi.get("linear")) == (
        "DIOPI_OP diopiError_t diopi_linear(diopiContextHandle_t ctx, diopiTensorHandle_t out,\n"
        "    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,\n"
        "    diopiConstTensorHandle_t bias /*nullable*/);\n"
    )
    assert "diopiTensorHandle_t* out," in header.declaration(diopi.get("nonzero"))
    assert "const int64_t* dim /*nullable*/" in header.declaration(diopi.get("argmax"))


def test_the_published_order_is_kept() -> None:
    text = header.published(catalogue.functions()["diopiSoftmax"])
    assert text == (
        "DIOPI_OP diopiError_t diopiSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,\n"
        "    diopiConstTensorHandle_t input, int64_t dim);\n"
    )


def test_the_protocol_has_one_method_for_each_op() -> None:
    tree = ast.parse(files.PROTOCOL.read_text("utf-8"))
    kernels = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = [node.name for node in kernels.body if isinstance(node, ast.FunctionDef)]
    assert [name.rstrip("_") for name in methods] == list(OPS)
    assert protocol.method(diopi.get("add")) == (
        "    def add(self, input: Tensor, other: Tensor, *, alpha: Number = 1) -> Tensor: ...\n"
    )


def test_the_snippet_of_the_index_prints_what_it_says(capsys: Any) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", pages.render()["README.md"], re.M | re.S)
    exec(compile(snippet, "docs/diopi/README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print.*  # (.*)$", snippet, re.M)


def test_the_pages_have_every_op() -> None:
    texts = pages.render()
    for op in OPS.values():
        assert f"\n## {op.name}\n" in texts[f"{op.family}.md"]
    assert len(texts["ops.csv"].splitlines()) == len(OPS) + 1
