"""Whole training runs: the device's losses equal the CPU's, without memory leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

Make = Callable[[], nn.Module]


class _Sequence(nn.Module):
    """An LSTM and a head on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        return self.head(outputs[:, -1])


class _Encoder(nn.Module):
    """A transformer encoder and a head on its mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


MODELS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)), (16, 8)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.Flatten(),
            nn.Linear(32, 4),
        ),
        (16, 3, 8, 8),
    ),
    "transformer": (_Encoder, (16, 6, 8)),
    "lstm": (_Sequence, (16, 6, 8)),
}


def _losses(name: str, device: str, steps: int = 10) -> list[float]:
    torch.manual_seed(5)
    make, shape = MODELS[name]
    net = make().to(device)
    x, y = torch.randn(shape).to(device), torch.randint(0, 4, (shape[0],)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_ten_steps_equal_the_cpus(name: str) -> None:
    actual, expected = _losses(name, "dipu"), _losses(name, "cpu")
    assert actual == pytest.approx(expected, rel=1e-4)
    assert actual[-1] < actual[0]


def test_a_second_device_gives_the_same_losses() -> None:
    assert _losses("mlp", "dipu:1") == _losses("mlp", "dipu:0")


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_thousand_steps_leave_the_memory_where_it_was() -> None:
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("dipu")
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    x, y = torch.randn(8, 16, device="dipu"), torch.randint(0, 4, (8,), device="dipu")

    def train(steps: int) -> tuple[int, int, int]:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        gc.collect()
        return torch.dipu.memory_allocated(), torch.dipu.memory_reserved(), _resident()

    allocated, reserved, resident = train(50)
    after = train(1000)
    assert after[:2] == (allocated, reserved)
    assert after[2] - resident < 4 << 20


def test_gradient_accumulation_equals_one_large_batch() -> None:
    torch.manual_seed(1)
    net = nn.Linear(4, 1).to("dipu")
    x = torch.randn(8, 4, device="dipu")
    net(x).square().mean().backward()
    assert net.weight.grad is not None
    whole = net.weight.grad.clone()
    net.zero_grad()
    for part in x.chunk(4):
        (net(part).square().mean() / 4).backward()
    torch.testing.assert_close(net.weight.grad.cpu(), whole.cpu())


def test_a_model_split_over_two_devices_trains() -> None:
    torch.manual_seed(1)
    first, second = nn.Linear(4, 8).to("dipu:0"), nn.Linear(8, 1).to("dipu:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.05)
    x = torch.randn(8, 4, device="dipu:0")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = second(torch.relu(first(x)).to("dipu:1")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
