"""Floats where sizes are dynamic: those of modules are constants, those of calls are inputs."""

import torch
from torch import Tensor, nn

from dicp.dynamo_bridge import report
from tests.dicp import toy


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.arange(1.0, 5.0)), 0.5

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        made = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return made * factor


@torch.no_grad()
def test_a_norm_is_known_by_the_epsilon_that_its_module_holds() -> None:
    backend, model, before = toy.make(), Norm(), len(report.RECORDS)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for eps in (0.5, 0.25):  # another one is noticed
        model.eps = eps
        for rows in (2, 3):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(report.RECORDS) == before + 2
    functions = [line[1] for line in backend.programs[-1]["lines"]]  # type: ignore[attr-defined]
    assert "rms_norm" in functions


@torch.no_grad()
def test_a_float_of_the_call_stays_an_input() -> None:
    model, x = Norm(), torch.randn(2, 4)
    compiled = torch.compile(model, backend=toy.make(), dynamic=True)
    compiled(x, 2.0)
    before = len(report.RECORDS)
    torch.testing.assert_close(compiled(x, 3.0), model(x, 3.0))
    assert len(report.RECORDS) == before
