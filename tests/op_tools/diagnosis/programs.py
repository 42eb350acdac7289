"""Small trainings that the tests of diagnosis run: the same losses each time."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import torch_dipu  # noqa: F401


def training(
    quirk: tuple[str, str] | None = None, dtype: torch.dtype = torch.float32, **parameters: float
) -> Callable[[], list[float]]:
    """A function that trains for two steps, under a fault of the reference device or none."""

    def run() -> list[float]:
        if quirk is None:
            return _train(dtype)
        with torch.dipu.quirk(*quirk, **parameters):
            return _train(dtype)

    return run


def _train(dtype: torch.dtype) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    model.to("dipu", dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(2):
        x = torch.randn(32, 8).to("dipu", dtype)
        target = torch.randint(0, 4, (32,)).to("dipu")
        loss = F.cross_entropy(model(x).float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
