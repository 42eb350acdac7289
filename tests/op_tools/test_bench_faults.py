"""The fault table of benchmarks/bench_faults.py, a quick part of it."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_faults
from op_tools.core import tool_errors
from tests.op_tools import small

if small.CARD != "dipu":
    pytest.skip("at real size this is the benchmark itself", allow_module_level=True)


@pytest.fixture(scope="module")
def training() -> bench_faults.Training:
    return bench_faults.llama("dipu", torch.bfloat16)


@pytest.mark.parametrize(
    ("fault", "operator"),
    [
        ("tile zero", "mm"),
        ("narrow partial sums", "mm"),
        ("1 % too large", "silu"),
        ("wrong strides", "attention"),
        ("stale copy", "embedding"),
        ("wrong step", "optimizer"),
    ],
)
def test_a_planted_operator_is_named(
    training: bench_faults.Training, fault: str, operator: str
) -> None:
    found = bench_faults.search(training, "dipu", fault, operator)
    assert found.note == ""
    assert found.step is not None
    assert found.others == ()
    assert not tool_errors.problems("OpAutoCompare")


def test_a_kernel_is_itself_again_after_the_fault() -> None:
    x = torch.ones(4, 4, device="dipu")
    with bench_faults.planted("dipu", "silu", bench_faults.FAULTS["tile zero"][0]()) as calls:
        assert torch.nn.functional.silu(x)[3, 3] == 0
    assert calls() == 1
    assert torch.nn.functional.silu(x)[3, 3] > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["ResNet", "UNet"])
def test_no_healthy_run_is_reported(model: str, precision: str) -> None:
    found = bench_faults.healthy(model, precision, "dipu", 3)
    assert (found.compare, found.guard) == (0, 0), found.named
    assert found.compared > 30
