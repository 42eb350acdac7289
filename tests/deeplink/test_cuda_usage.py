"""Reading a program before it is run: what it uses of CUDA, and what the device does with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from deeplink.errors import DeeplinkError
from deeplink.inspection.cuda_usage import dependencies, scan, source
from tests import warm

PROGRAM = """
import torch
import torch.cuda.nvtx as nvtx
from torch import cuda
from torch.cuda.amp import GradScaler
torch.cuda.manual_seed_all(1)
cuda.synchronize()
cuda.synchronize()
nvtx.range_push("x")
torch.cuda.jiterator._create_jit_fn("")
other.cuda.is_available()
torch.cuda.no_such_name()
"""
FOREIGN = """
import torch, triton
import triton.language as tl
from flash_attn import flash_attn_func
from apex.normalization import FusedLayerNorm
from torch.utils.cpp_extension import load_inline
from torch.utils import cpp_extension
try:
    import bitsandbytes as bnb
except ImportError:
    bnb = None

@triton.jit
def kernel(x):
    pass

load_inline("name", cuda_sources="__global__ void f() {}")
cpp_extension.CUDAExtension("name", ["kernel.cu"])
"""


def cover(*line: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `deeplink coverage` in this process, without importing torch again."""
    here = {"DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "reference", "COLUMNS": "400", **environment}
    line = ("-m", "ditorch", "coverage", *line)
    return warm.run([*map(str, line)], {**os.environ, **here}, warn="ignore")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--lr", "1"],
        ["-m", "train"],
        ["python", "-u", "train.py"],
        ["--", "train.py"],
        ["torchrun", "--nproc-per-node", "2", "train.py", "--model", "other.py"],
        ["torchrun", "-m", "train"],
        ["python", "-m", "torch.distributed.run", "train.py"],
    ],
    ids=" ".join,
)
def test_a_program_is_named_as_for_a_run(
    words: list[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    assert source(words).resolve() == program


def test_a_module_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    for name in ("__init__", "train"):
        (tmp_path / f"package/{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert source(["-m", "package.train"]) == tmp_path / "package/train.py"
    assert source(["-m", "package"]) == tmp_path / "package"
    with pytest.raises(DeeplinkError, match=r"no module 'package.other'"):
        source(["-m", "package.other"])


def test_a_program_may_be_a_module(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parent)
    done = cover("-m", "train", "--all")
    assert "train.py" in done.stdout + done.stderr
    assert done.returncode == 1


def test_names_are_found_by_attribute_alias_and_import(program: Path) -> None:
    uses = {use.name: use for use in scan(program).uses}
    assert sorted(uses) == [
        "amp.GradScaler",
        "jiterator._create_jit_fn",
        "manual_seed_all",
        "no_such_name",
        "nvtx.range_push",
        "synchronize",
    ]
    assert uses["synchronize"].lines == (7, 8)


def test_the_command_lists_what_is_not_served_and_fails(program: Path) -> None:
    done = cover(program)
    assert done.returncode == 1, done.stderr
    said = "4 of 6 torch.cuda calls are supported on reference device (CPU); 1 raise; 1 are unknown"
    assert said in done.stdout
    assert "jiterator._create_jit_fn" in done.stdout
    assert "manual_seed_all" not in done.stdout


def test_a_name_whose_call_raises_or_warns_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "graphs.py"
    path.write_text("import torch\ng = torch.cuda.CUDAGraph()\ntorch.cuda.utilization()\n")
    done = cover(path, DEEPLINK_VENDOR="cpu")
    assert done.returncode == 1
    assert re.search(r"CUDAGraph +raises +.*the device captures no", done.stdout), done.stdout
    assert re.search(r"utilization +warns +.*warns and returns 0", done.stdout), done.stdout
    assert "0 of 2 torch.cuda calls are supported" in done.stdout
    strict = cover(path, DEEPLINK_VENDOR="cpu", DITORCH_STRICT="1")
    assert re.search(r"utilization +raises", strict.stdout), strict.stdout


def test_graphs_are_supported_on_a_device_that_captures_them(tmp_path: Path) -> None:
    path = tmp_path / "graphs.py"
    path.write_text("import torch\ng = torch.cuda.CUDAGraph()\n")
    done = cover(path, DEEPLINK_VENDOR="reference")
    assert (done.returncode, done.stdout) == (
        0,
        "All 1 torch.cuda call is supported on reference device (CPU).\n",
    )


def test_the_answer_is_the_chosen_devices(tmp_path: Path) -> None:
    path = tmp_path / "fine.py"
    path.write_text("import torch\ntorch.cuda.empty_cache()\ns = torch.cuda.Stream()\n")
    for vendor, label in (("cpu", "plain CPU"), ("reference", "reference device (CPU)")):
        done = cover(path, DEEPLINK_VENDOR=vendor)
        assert (done.returncode, done.stdout) == (
            0,
            f"All 2 torch.cuda calls are supported on {label}.\n",
        )


def test_what_the_check_does_not_cover_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FOREIGN)
    (tmp_path / "more.cu").write_text("__global__ void f() {}")
    done = cover(tmp_path)
    assert done.returncode == 1
    assert "not covered by this check: " in done.stdout
    for name in (
        *("flash_attn", "apex", "bitsandbytes", "triton", "@triton.jit"),
        *("load_inline", "CUDAExtension", "kernel.cu", "more.cu"),
    ):
        assert re.search(rf"^ *{re.escape(name)} +(not covered|raises)", done.stdout, re.M), name
    assert "torch.nn.functional.scaled_dot_product_attention" in done.stdout


def test_bad_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DeeplinkError, match="no file or folder"):
        scan(tmp_path / "missing.py")
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    with pytest.raises(DeeplinkError, match=r"cannot read .*broken\.py as Python"):
        scan(broken)
    done = cover(broken)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "Hint: " in done.stderr


def found_in(folder: Path, text: str, name: str = "train.py") -> dict[str, str]:
    """What a program uses of CUDA outside of torch.cuda, with the outcome."""
    (folder / name).write_text(text)
    return {one.name: one.outcome for one in scan(folder / name).foreign}


def test_every_row_of_the_table_is_complete() -> None:
    rows = dependencies()
    assert len(rows) > 60
    assert [row.pattern for row in rows if not (row.what and row.advice)] == []
    assert len({(row.kind, row.pattern) for row in rows}) == len(rows)
    for row in rows:
        if row.kind == "text":
            re.compile(row.pattern)


@pytest.mark.parametrize(
    "package",
    ["flash_attn", "bitsandbytes", "apex", "xformers", "deepspeed", "transformer_engine", "vllm",
     "mamba_ssm", "causal_conv1d", "cupy", "pycuda", "numba.cuda", "pynvml", "flag_gems"],
)  # fmt: skip
def test_a_package_with_cuda_binaries_is_named_with_advice(tmp_path: Path, package: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"def late():\n    import {package}.inner\n")
    (one,) = scan(path).foreign
    assert (one.name, one.line, bool(one.advice)) == (package, 2, True)


def test_a_module_of_the_program_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("")
    assert found_in(tmp_path, "import kernels") == {}
    assert found_in(tmp_path, "import numba") == {}


def test_cpp_extensions_without_cuda_are_not_named(tmp_path: Path) -> None:
    program = """
from torch.utils.cpp_extension import load, load_inline
load_inline("a", "int f() { return 1; }", functions=["f"], with_cuda=False)
load("b", ["b.cpp"])
"""
    assert found_in(tmp_path, program) == {}


@pytest.mark.parametrize(
    ("call", "name", "outcome"),
    [
        ("load_inline('a', '', source)", "load_inline", "raises"),
        ("load_inline('a', '', cuda_sources=[source])", "load_inline", "raises"),
        ("load('a', names, with_cuda=True)", "load", "raises"),
        ("load('a', ['kernels/b.cu'])", "b.cu", "not covered"),
        ("CUDAExtension('a', names)", "CUDAExtension", "raises"),
    ],
)
def test_cuda_cpp_is_named(tmp_path: Path, call: str, name: str, outcome: str) -> None:
    program = f"from torch.utils.cpp_extension import *\nimport torch\n{call}\n"
    program = program.replace("*", call.partition("(")[0])
    assert found_in(tmp_path, program) == {name: outcome}


SETUP = """
'''A docstring about nvcc and CUDA_HOME is no use of either.'''
import os, subprocess
from torch.utils.cpp_extension import CUDA_HOME
home = os.environ.get("CUDA_PATH")
subprocess.run(["nvcc", "--version"])
subprocess.run("/usr/local/cuda/bin/nvcc -O3 a.cpp", shell=True)
subprocess.check_output(["nvidia-smi"])
"""


def test_the_compiler_of_cuda_is_named(tmp_path: Path) -> None:
    assert found_in(tmp_path, SETUP, "setup.py") == dict.fromkeys(
        ("CUDA_HOME", "CUDA_PATH", "nvcc", "nvidia-smi"), "not covered"
    )


def test_libraries_of_cuda_that_ctypes_loads_are_named(tmp_path: Path) -> None:
    program = """
import ctypes, ctypes.util
ctypes.CDLL("libcuda.so.1")
ctypes.cdll.LoadLibrary("/usr/local/cuda/lib64/libcudart.so")
ctypes.util.find_library("nccl")
ctypes.util.find_library("c")
ctypes.CDLL("libm.so.6")
"""
    assert found_in(tmp_path, program) == {
        "libcuda.so.1": "raises",
        "libcudart.so": "raises",
        "find_library": "not covered",
    }


def test_modules_that_the_program_imports_are_read(tmp_path: Path) -> None:
    package = tmp_path / "model" / "layers"
    package.mkdir(parents=True)
    (tmp_path / "model" / "__init__.py").write_text("import apex")
    (package / "__init__.py").write_text("from . import attention, missing")
    (package / "attention.py").write_text("import flash_attn\nfrom ...model import rope")
    (tmp_path / "model" / "rope.py").write_text("from .layers.norm import Norm")
    (package / "norm.py").write_text("import torch\ntorch.cuda.nvtx.mark('x')\nimport train")
    (tmp_path / "unused.py").write_text("import bitsandbytes")
    (tmp_path / "train.py").write_text("from model import layers\nimport os")
    found = scan(tmp_path / "train.py")
    assert {one.name for one in found.foreign} == {"apex", "flash_attn"}
    (use,) = found.uses
    assert (use.name, use.file) == ("nvtx.mark", str(package / "norm.py"))
    inner = scan(package / "attention.py")
    assert {one.name for one in inner.foreign} == {"apex", "flash_attn"}


def test_installed_packages_below_a_folder_are_not_read(tmp_path: Path) -> None:
    for place in (".venv/lib", "venv/lib/python3.11/site-packages/other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.py").write_text("import apex")
    (tmp_path / "b.py").write_text("import xformers")
    assert [one.name for one in scan(tmp_path).foreign] == ["xformers"]


def test_the_command_names_what_raises_and_what_is_not_covered(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import ctypes, deepspeed\nctypes.CDLL('libcudart.so')\n")
    done = cover("--json", tmp_path / "out.json", tmp_path / "train.py")
    assert done.returncode == 1
    assert "does not run on reference device (CPU): libcudart.so" in done.stdout
    assert "not covered by this check: deepspeed" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    outcomes = [(one["name"], one["outcome"]) for one in written["dependencies"]]
    assert outcomes == [("deepspeed", "not covered"), ("libcudart.so", "raises")]


def test_on_cuda_itself_all_of_it_is_supported(tmp_path: Path) -> None:
    import ditorch

    ditorch.undo()  # the import activates it, in the process of all tests
    from ditorch.coverage import dependencies_of

    (tmp_path / "train.py").write_text("import flash_attn")
    assert dependencies_of(scan(tmp_path / "train.py"), None) == []
