"""Optimizers against the CPU's, and modules that move after the optimizer was made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

Make = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p, **kw: torch.optim.SGD(p, 0.1, momentum=0.9, **kw),
    "Adam": lambda p, **kw: torch.optim.Adam(p, 0.01, amsgrad=True, **kw),
    "AdamW": lambda p, **kw: torch.optim.AdamW(p, 0.01, weight_decay=0.1, **kw),
    "Adagrad": lambda p, **kw: torch.optim.Adagrad(p, 0.1, **kw),
    "RMSprop": lambda p, **kw: torch.optim.RMSprop(p, 0.01, **kw),
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
CASES = [
    (name, mode)
    for name in OPTIMIZERS
    for mode in MODES
    if mode != "fused" or name in ("SGD", "Adam", "AdamW")
]


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _step(net: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    device = next(net.parameters()).device
    x = torch.linspace(-1, 1, 32).view(8, 4).to(device)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_ten_steps_equal_the_cpus(name: str, mode: str) -> None:
    host = _net()
    device = copy.deepcopy(host).to("dipu")
    expected = OPTIMIZERS[name](host.parameters())
    actual = OPTIMIZERS[name](device.parameters(), **MODES[mode])
    for _ in range(10):
        _step(host, expected)
        _step(device, actual)
    for mine, cpu in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), cpu.detach())


def test_the_state_lives_on_the_device() -> None:
    net = _net().to("dipu")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    _step(net, optimizer)
    state = optimizer.state[next(net.parameters())]
    assert {key: value.device.type for key, value in state.items()} == {
        "step": "dipu",
        "exp_avg": "dipu",
        "exp_avg_sq": "dipu",
    }


def test_an_optimizers_state_returns_to_the_device_when_loaded() -> None:
    net = _net().to("dipu")
    optimizer = torch.optim.Adam(net.parameters())
    _step(net, optimizer)
    other = torch.optim.Adam(net.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    average = other.state[next(net.parameters())]["exp_avg"]
    assert average.device.type == "dipu"


@pytest.mark.parametrize("way", [["dipu"], ["dipu", "cpu", "dipu"], ["dipu:1"], ["dipu", "cpu"]])
def test_moving_a_module_after_its_optimizer_was_made_still_trains(way: list[str]) -> None:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    parameters = list(net.parameters())
    for device in way:
        net.to(device)
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    before = [p.detach().cpu().clone() for p in parameters]
    losses = [_step(net, optimizer) for _ in range(5)]
    assert losses[-1] < losses[0]
    for now, then in zip(parameters, before, strict=True):
        assert not torch.equal(now.detach().cpu(), then)


def test_moving_a_module_moves_its_gradients_too() -> None:
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to("dipu")
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == torch.device("dipu", 0)
    assert layer.weight.grad.tolist() == [[1.0, 1.0]]


def test_moving_a_module_keeps_tied_weights_tied() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    net = nn.Sequential(first, second).to("dipu")
    assert net[0].weight is net[1].weight
    assert net[0].weight.device.type == "dipu"


def test_module_dipu_and_half_and_to_empty() -> None:
    layer = nn.Linear(2, 2).dipu()  # type: ignore[operator]
    assert layer.weight.device.type == "dipu"
    assert layer.half().weight.dtype == torch.float16
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    assert empty.to_empty(device="dipu").weight.device.type == "dipu"


def test_lbfgs_minimises_on_the_device() -> None:
    x = nn.Parameter(torch.tensor([3.0, -2.0], device="dipu"))
    optimizer = torch.optim.LBFGS([x], line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = (x - 1).square().sum()
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    assert x.tolist() == pytest.approx([1.0, 1.0], abs=1e-4)


def test_a_learning_rate_held_in_a_tensor() -> None:
    net = _net().to("dipu")
    rate = torch.tensor(0.01, device="dipu")
    optimizer = torch.optim.Adam(net.parameters(), lr=rate, fused=True)
    losses = [_step(net, optimizer) for _ in range(3)]
    assert losses[-1] < losses[0]
