"""Reading a program before it is run: what it uses of CUDA, and what the device does with it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from deeplink.errors import DeeplinkError
from deeplink.inspection.cuda_usage import scan
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
    done = cover(path)
    assert done.returncode == 1
    assert re.search(r"CUDAGraph +raises +.*the device captures no", done.stdout), done.stdout
    assert re.search(r"utilization +warns +.*warns and returns 0", done.stdout), done.stdout
    assert "0 of 2 torch.cuda calls are supported" in done.stdout
    strict = cover(path, DITORCH_STRICT="1")
    assert re.search(r"utilization +raises", strict.stdout), strict.stdout


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
        assert re.search(rf"^ *{re.escape(name)} +not covered", done.stdout, re.M), name
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
