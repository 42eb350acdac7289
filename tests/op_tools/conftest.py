"""What every test of the tools shares: the reference device, a folder of its own, no tool left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from op_tools.core import engine, native_library, step_counter, tool_errors
from op_tools.tensors import device_reduction, statistics, statistics_sink
from tests.op_tools import small

if small.CARD == "dipu":
    import torch_dipu  # noqa: F401

# some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 bmm
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(autouse=True)
def clean_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seeds, an empty folder to write to; afterwards no tool, and nothing of torch's is changed."""
    for name in [name for name in os.environ if name.startswith(("OP_", "AUTOCOMPARE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    tool_errors.clear()
    step_counter.reset()
    backward = torch.autograd.graph._engine_run_backward
    yield
    left = engine.active()
    for tool in left:
        tool.stop()
    assert not left, f"the test left tools at work: {left}"
    assert torch._C._len_torch_function_stack() == 0
    assert torch.autograd.graph._engine_run_backward is backward


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The device's memory is one that the host does not see; how many pieces each start has."""
    if native_library.helper() is None:
        pytest.skip("no compiler here")
    own = device_reduction.starter("dipu")
    assert own is not None
    seen: list[int] = []

    def start(table: torch.Tensor, device: torch.device) -> Callable[[], torch.Tensor]:
        seen.append(len(table))
        return own(table, device)

    monkeypatch.setattr(statistics_sink, "window", lambda kind, index: None)
    monkeypatch.setattr(statistics, "is_seen", lambda tensor: tensor.device.type == "cpu")
    monkeypatch.setattr(device_reduction, "starter", lambda kind: start)
    return seen
