"""Small models with what trips a tool up: dropout, checkpoints, in-place, BatchNorm, AMP."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# The device of tests that can run on a GPU. One of the two: the reference device hides CUDA.
CARD = "cuda" if os.environ.get("TESTS_ON_CARD") else "dipu"


class Small(nn.Module):
    """BatchNorm and Linear, dropout, an in-place ReLU, attention in a checkpoint."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.beside = nn.BatchNorm1d(width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 4)

    def mix(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) / 4
        mask = torch.ones_like(scores).triu(1).bool()
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.drop(self.act(self.beside(x) + x))
        x = x + checkpoint(self.mix, self.norm(x), use_reentrant=False)
        out: Tensor = self.last(x)
        return out


def train(steps: int, device: str = "dipu", amp: bool = False) -> dict[str, object]:
    """The losses, the last gradients, the weights and the state of the random numbers."""
    torch.manual_seed(3)
    model = Small().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(steps, 12, 8)
    labels = torch.randint(0, 4, (steps, 12))
    losses = []
    for x, y in zip(data.to(device), labels.to(device), strict=True):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {
        "losses": losses,
        "gradients": [p.grad.cpu() for p in model.parameters() if p.grad is not None],
        "weights": [value.cpu() for value in model.state_dict().values()],
        "random": [torch.get_rng_state(), torch.get_device_module(device).get_rng_state()],
    }
