"""A small CNN and a small transformer on the chosen device and on the CPU: losses side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_dipu

STEPS = 8


class Attention(nn.Module):
    """One block: attention and a feed-forward layer, each normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = (
            self.mix(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        q, k, v = parts[0], parts[1], parts[2]
        weights = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.feed(self.after(x))
        return result


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


def transformer() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(40, 16),
        Attention(16, 2),
        Attention(16, 2),
        nn.LayerNorm(16),
        nn.Linear(16, 40),
    )


def train(make: Callable[[], nn.Module], x: Tensor, y: Tensor, device: str) -> list[float]:
    """The losses of a few steps of AdamW, from the same start on every device."""
    torch.manual_seed(0)
    net, x, y = make().to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    torch.manual_seed(1)
    words = torch.randint(0, 40, (4, 12))
    cases = {
        "CNN": (cnn, torch.randn(8, 1, 12, 12), torch.randint(0, 10, (8,))),
        "transformer": (transformer, words, words.roll(-1, 1)),
    }
    apart = 0.0
    for name, (make, x, y) in cases.items():
        cpu, device = (train(make, x, y, where) for where in ("cpu", "dipu"))
        apart = max(apart, *(abs(a - b) for a, b in zip(cpu, device, strict=True)))
        shown = ", ".join(f"{loss:.6f}" for loss in device)
        print(f"{name} on {torch_dipu.VENDOR.label}: {shown}; CPU's last {cpu[-1]:.6f}")
    print(f"largest difference of a loss: {apart:.2g}")
    return int(apart > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
