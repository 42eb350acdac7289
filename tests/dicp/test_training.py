"""inductorgraph: training with our passes inside of inductor, held to the gradients of eager."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deeplink.judge import judge
from deeplink_vendors.cuda.graph import backend, patches
from dicp.dynamo_bridge import layout, measure, report
from tests.dicp import blocks


def gradients(model: nn.Module, run: Any, args: tuple[Any, ...]) -> list[Tensor]:
    model.zero_grad()
    run(*args).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # inductor's own imports
@pytest.mark.slow  # inductor compiles C++ for a minute
@pytest.mark.parametrize("make", [blocks.llama, blocks.convolutions])
def test_gradients_are_as_good_as_eager_s(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Any] = []
    monkeypatch.setattr(layout, "_join", passed.append)
    model, args = make()
    mine = gradients(model, torch.compile(model, backend=backend), args)
    plain = gradients(model, model, args)
    model.double()
    wide = gradients(model, model, tuple(x.double() for x in args))
    for got, eager, exact in zip(mine, plain, wide, strict=True):
        assert judge(got, exact, run_plain=lambda eager=eager: eager).passed
    assert bool(passed) == (make is blocks.llama)  # our pass saw its permutes
    assert report.RECORDS[-1].kind == "training"


def test_a_training_step_that_loses_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(measure, "_now", lambda args: now[0])
    weight, calls = nn.Parameter(torch.ones(2)), list[str]()

    def candidate(name: str, seconds: float) -> Any:
        def run(x: Tensor, w: Tensor) -> tuple[Tensor]:
            now[0] += seconds
            calls.append(name)
            return (x * w,)

        return run

    told: list[str] = []
    choice = measure.TrainingChoice(candidate("compiled", 2), candidate("eager", 1), told.append)
    choice(torch.ones(2), weight)[0].sum().backward()
    assert torch.equal(weight.grad, torch.ones(2))  # type: ignore[arg-type]  # of this call alone
    assert calls[-1] == "eager"
    assert told == ["eager: 1000000 us a step, compiled 2000000"]


def test_inference_gets_cuda_graphs_or_a_wrapper_in_c() -> None:
    class OnCuda(Tensor):
        @property
        def device(self) -> Any:
            return torch.device("cuda")

    x = torch.ones(1).as_subclass(OnCuda)
    assert patches([x], False) == {"triton.cudagraphs": True}
    assert patches([x], True) == {"triton.cudagraphs": False}
    assert patches([torch.ones(1)], False) == {"cpp_wrapper": True}
    assert patches([torch.ones(1)], True) == {}
