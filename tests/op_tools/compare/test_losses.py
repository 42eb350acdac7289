"""OpAutoCompare on the gradients of losses: a fault in any row is named, a healthy loss is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import bench_faults
from op_tools import OpAutoCompare
from op_tools.core import step_counter, tool_errors
from tests.op_tools import small

if small.CARD != "dipu":
    pytest.skip(
        "the faults are planted in kernels of the reference device", allow_module_level=True
    )

ROWS, CLASSES, STEPS = 400, 300, 20
KINDS = [
    fault
    for fault, (_, operators) in bench_faults.FAULTS.items()
    if "log_softmax" in operators and fault != "stale copy"
]
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, CLASSES, generator=generator) * scale
    return x.to("dipu", dtype).requires_grad_()


def classes() -> Tensor:
    return (torch.arange(ROWS) * 7 % CLASSES).to("dipu")


@pytest.fixture(autouse=True)
def _steps() -> Iterator[None]:
    yield
    step_counter.reset()


def compare(loss: Callable[[], Tensor], steps: int = STEPS) -> OpAutoCompare:
    """Compute a loss and its gradients some times, until a call is wrong."""
    with OpAutoCompare() as tool:
        for _ in range(steps):
            loss().float().sum().backward()
            step_counter.step()
            if tool.failures:
                break
    return tool


@pytest.mark.parametrize("fault", KINDS)
def test_a_fault_in_the_softmax_of_a_loss_is_named(fault: str) -> None:
    x, targets = logits(), classes()
    with bench_faults.planted("dipu", "log_softmax", bench_faults.FAULTS[fault][0]()):
        tool = compare(lambda: F.cross_entropy(x, targets))
    assert {failure.name.rpartition(".")[2] for failure in tool.failures} == {"cross_entropy"}


@pytest.mark.parametrize("dtype", TYPES)
def test_one_wrong_row_of_a_narrow_loss_is_named(dtype: torch.dtype) -> None:
    x, targets = logits(dtype), classes()
    make = bench_faults.FAULTS["one sign flipped"][0]
    with bench_faults.planted("dipu", "log_softmax", make()):
        tool = compare(lambda: F.cross_entropy(x, targets, label_smoothing=0.1))
    assert [failure.name.rpartition(".")[2] for failure in tool.failures] == ["cross_entropy"]


def test_the_result_of_the_previous_call_is_named() -> None:
    x, targets = logits(), classes()
    with bench_faults.planted("dipu", "log_softmax", bench_faults.FAULTS["stale copy"][0]()):
        tool = OpAutoCompare()
        with tool:
            for at in range(STEPS):
                F.cross_entropy(x + at * x.flip(0), targets).backward()
                step_counter.step()
    assert {failure.name.rpartition(".")[2] for failure in tool.failures} == {"cross_entropy"}


def shares() -> Tensor:
    return torch.rand(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)).to("dipu")


def masked(x: Tensor) -> Tensor:
    """Logits of which each row has some -Inf, not that of its target."""
    mask = torch.zeros(ROWS, CLASSES)
    mask[:, 200:] = -math.inf
    return x + mask.to("dipu", x.dtype)


def ignoring() -> Tensor:
    targets = classes().remainder(200)
    targets[::3] = -100
    return targets


HEALTHY: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: F.cross_entropy(x, classes()),
    "sum": lambda x: F.cross_entropy(x, classes(), reduction="sum"),
    "none": lambda x: F.cross_entropy(x, classes(), reduction="none"),
    "ignored": lambda x: F.cross_entropy(x, ignoring()),
    "all ignored": lambda x: F.cross_entropy(x, torch.full_like(classes(), -100)),
    "smoothed": lambda x: F.cross_entropy(x, ignoring(), label_smoothing=0.1),
    "weighted": lambda x: F.cross_entropy(x, ignoring(), weights(x)),
    "weighted, smoothed": lambda x: F.cross_entropy(x, ignoring(), weights(x), label_smoothing=0.1),
    "shares": lambda x: F.cross_entropy(x, shares().to(x.dtype)),
    "shares, smoothed": lambda x: F.cross_entropy(x, shares().to(x.dtype), label_smoothing=0.1),
    "masked": lambda x: F.cross_entropy(masked(x), ignoring()),
    "log_softmax": lambda x: F.nll_loss(F.log_softmax(x, -1), ignoring()),
    "softmax": lambda x: F.softmax(masked(x), -1)[:, :9],
    "places": lambda x: F.cross_entropy(
        x.view(20, 20, 300).transpose(1, 2), classes().view(20, 20)
    ),
}


def weights(x: Tensor) -> Tensor:
    return torch.linspace(0, 2, CLASSES).to("dipu", x.dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_loss_is_no_suspect(kind: str, dtype: torch.dtype) -> None:
    x = logits(dtype)
    tool = compare(lambda: HEALTHY[kind](x), 5)
    assert (tool.failures, tool.samples()[1:]) == ([], [])
    assert not tool_errors.problems("OpAutoCompare")
    reasons = {reason for reason, name in tool.skipped if "loss" in name or "entropy" in name}
    assert reasons == set()


@pytest.mark.parametrize("scale", [1e-6, 1e4])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_loss_of_extreme_logits_is_no_suspect(dtype: torch.dtype, scale: float) -> None:
    x, targets = logits(dtype, scale), classes()
    tool = compare(lambda: F.cross_entropy(x, targets), 5)
    assert (tool.failures, tool.samples()[1:]) == ([], [])


def test_a_loss_of_nothing_is_no_suspect() -> None:
    x = torch.zeros(0, CLASSES).to("dipu").requires_grad_()
    tool = compare(lambda: F.cross_entropy(x, classes()[:0], reduction="sum"), 2)
    assert (tool.failures, tool.samples()) == ([], [])


def test_a_nan_in_a_gradient_is_named_at_its_first_call() -> None:
    x, targets = logits(), classes()
    with bench_faults.planted("dipu", "log_softmax", bench_faults.FAULTS["NaN"][0]()):
        tool = compare(lambda: F.cross_entropy(x, targets), 1)
    assert [(failure.direction, failure.item) for failure in tool.failures] == [
        ("backward", "grad[0]")
    ]


def test_a_nan_by_weights_of_zero_is_no_suspect() -> None:
    x, targets = logits(), classes()
    weight = torch.zeros(CLASSES).to("dipu")
    tool = compare(lambda: F.cross_entropy(x, targets, weight), 3)
    assert (tool.failures, tool.samples()[1:]) == ([], [])
