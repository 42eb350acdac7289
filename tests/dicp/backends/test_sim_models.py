"""Blocks of models through the simulated backends: inference, changing sizes, training; judged."""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deeplink.judge import envelope, judge
from dicp import Backend
from dicp.dynamo_bridge import report
from tests.dicp import blocks, sim_models
from tests.dicp.levels import SIMULATED
from tests.dicp.sim_models import BLOCKS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


@pytest.fixture(params=SIMULATED.values(), ids=SIMULATED.keys())
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


def typed(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [x.to(dtype) if x.is_floating_point() else x for x in inputs]


def judged(result: Tensor, model: nn.Module, inputs: Sequence[Tensor]) -> str:
    """Compare a result with float64, and with eager in its own type; "" when it is correct."""
    with torch.no_grad():
        plain = model(*inputs)
        reference = model.double()(*typed(inputs, torch.float64))
    model.to(result.dtype)
    verdict = judge(result, reference, run_plain=lambda: plain)
    return "" if verdict.passed else str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_one_partition_and_right(
    backend: Backend, name: str, dtype: torch.dtype
) -> None:
    model, inputs = BLOCKS[name]()
    model, given = model.to(dtype), typed(inputs, dtype)
    with torch.no_grad():
        result = torch.compile(model, backend=backend)(*given)
    assert judged(result, model, given) == ""
    record = report.RECORDS[-1]
    assert (record.parts, record.eager) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize("make", [blocks.llama, sim_models.bert], ids=["llama", "bert"])
def test_sizes_that_change_are_served(backend: Backend, make: Callable[..., Any]) -> None:
    """Run without recompiling, where the backend supports symbolic sizes."""
    model, inputs = make()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    graphs = []
    for times in (1, 2, 3):
        given = [torch.cat([x] * times) if x.shape[0] == 2 else x for x in inputs]
        with torch.no_grad():
            result = compiled(*given)
        assert judged(result, model, given) == ""
        graphs.append(len(report.RECORDS))
    assert report.RECORDS[-1].taken
    if backend.dynamic == "native":
        assert len(set(graphs)) == 1  # none after the first call


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_right(backend: Backend, name: str) -> None:
    model, inputs = BLOCKS[name]()
    torch.compile(model, backend=backend)(*inputs).square().sum().backward()
    result = {key: p.grad for key, p in model.named_parameters()}
    plain = _gradients(model, inputs)
    model.double()
    exact = typed(inputs, torch.float64)
    wide = _gradients(model, exact)
    rooms = envelope(lambda: list(_gradients(model, exact).values()), list(wide.values()))
    room = dict(zip(wide, rooms, strict=True))
    kinds = {record.kind for record in report.RECORDS if record.taken}
    assert {"forward", "backward"} <= kinds
    for key, grad in result.items():
        assert grad is not None
        verdict = judge(
            grad,
            wide[key],
            run_plain=lambda key=key: plain[key],
            run_envelope=lambda key=key: room[key],
        )
        assert verdict.passed, f"{key}: {verdict}"


def _gradients(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    model(*inputs).square().sum().backward()
    return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


class Trained(nn.Module):
    """The parts of trained image models: convolutions, batch norms, adaptive pools."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=2, bias=False),
            nn.BatchNorm2d(4, affine=False),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(24, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x)
        return made


@pytest.mark.parametrize("name", ["ascendgraph", pytest.param("topsgraph", marks=pytest.mark.slow)])
def test_batch_norm_is_trained_and_nothing_stays_eager(name: str) -> None:
    torch.manual_seed(0)
    plain = Trained()
    model = copy.deepcopy(plain)
    x = torch.randn(2, 3, 17, 23)
    before = len(report.RECORDS)
    torch.compile(model, backend=SIMULATED[name])(x).square().sum().backward()
    plain(x).square().sum().backward()
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-5)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert [(r.kind, r.eager) for r in report.RECORDS[before:]] == [
        ("forward", []),
        ("backward", []),
    ]


def test_it_says_sim_wherever_it_is_named(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    x = torch.randn(2, 4)
    with caplog.at_level(logging.INFO, "dicp"), torch.no_grad():
        result = torch.compile(model, backend=backend)(x)
        assert torch.equal(result, model(x))
    label = f"{backend.name} (sim)"
    assert backend.label == label and backend.version().startswith("sim of")
    assert any(f"{label}: " in message for message in caplog.messages)
