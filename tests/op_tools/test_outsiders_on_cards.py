"""Kernels from outside of torch write tensors that wait: on a card, where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools import OpCapture
from tests.op_tools import small

if small.CARD != "cuda":
    pytest.skip("not on a card: see CONTRIBUTING.md", allow_module_level=True)
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def overwrite(to, size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads the types
    tl.store(to + tl.arange(0, size), -100.0)


def by_triton(tensor: torch.Tensor) -> None:
    overwrite[(1,)](tensor, tensor.numel())


def by_compiler(tensor: torch.Tensor) -> None:
    torch.compile(lambda one: one.sin_().mul_(0.0).sub_(100.0))(tensor)


@pytest.mark.filterwarnings("ignore")  # those of torch.compile's own
@pytest.mark.parametrize("level", ["aten", "api"])
@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("write", [by_triton, by_compiler])
def test_what_waits_is_what_it_was_before_a_kernel_from_outside(
    write: Any, native: str, level: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_TOOLS_NATIVE", native)
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    x = torch.full((1024,), 2.0, device="cuda")
    with OpCapture(mode="statistics", level=level):
        for _ in range(3):
            y = x * 3
            write(y)
            y + 1
    (file,) = tmp_path.glob("**/*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    made = [line["outputs"][0]["max"] for line in found if "mul" in line["op"].split(".")]
    given = [line["inputs"][0]["max"] for line in found if "add" in line["op"].split(".")]
    assert (made, given) == ([6.0] * 3, [-100.0] * 3)
