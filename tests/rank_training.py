"""The training that tests of distributed wrappers compare with one of a single process."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def data() -> tuple[nn.Module, Tensor, Tensor]:
    """A network, and a batch for it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return net, torch.randn(16, 8), torch.randint(0, 4, (16,))


def train(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Three steps."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def distance(net: nn.Module, expected: nn.Module) -> float:
    """The largest difference of a parameter from single-process training on the CPU."""
    pairs = zip(net.parameters(), expected.parameters(), strict=True)
    return max((whole(a).cpu() - b).abs().max().item() for a, b in pairs)


def whole(parameter: Tensor) -> Tensor:
    """The values of a parameter of all ranks."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()
