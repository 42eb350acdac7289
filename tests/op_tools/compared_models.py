"""Small models that are trained a few steps under a tool: what a real run is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention with an explicit mask, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), 1)
        weights = self.dropout(scores.masked_fill(mask, float("-inf")).softmax(dim=-1))
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Embeddings, blocks and a head: next-token logits."""

    def __init__(self, words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return logits


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, pooling and an addition in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.norms[0](self.first(x)), inplace=True))
        y = functional.relu(self.norms[1](self.second(x)))
        y = y + x
        y *= 0.5
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits


class Recurrent(nn.Module):
    """An MLP over the last state of an LSTM and of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 24, batch_first=True)
        self.gru = nn.GRU(12, 24, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(48, 32), nn.SiLU(), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        last = torch.cat([self.lstm(x)[0][:, -1], self.gru(x)[0][:, -1]], dim=-1)
        logits: Tensor = self.mlp(last)
        return logits


@dataclass(frozen=True)
class Case:
    """A model with what it is fed: inputs and targets of its cross entropy."""

    make: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]


def _tokens(batch: int, length: int, words: int) -> Callable[[], tuple[Tensor, Tensor]]:
    shape = (batch, length)
    return lambda: (torch.randint(0, words, shape), torch.randint(0, words, shape))


CASES = {
    "transformer": Case(lambda: Transformer(60, 32, 4, 2, 16), _tokens(2, 16, 60)),
    "convnet": Case(ConvNet, lambda: (torch.randn(4, 3, 12, 12), torch.randint(0, 10, (4,)))),
    "recurrent": Case(Recurrent, lambda: (torch.randn(4, 6, 12), torch.randint(0, 5, (4,)))),
}
LARGE = {
    "transformer": Case(lambda: Transformer(1000, 256, 8, 4, 128), _tokens(2, 128, 1000)),
    "convnet": Case(ConvNet, lambda: (torch.randn(16, 3, 48, 48), torch.randint(0, 10, (16,)))),
    "recurrent": Case(Recurrent, lambda: (torch.randn(16, 20, 12), torch.randint(0, 5, (16,)))),
}


def train(
    case: Case,
    device: str,
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
    steps: int = 2,
    seed: int = 0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> list[float]:
    """Some steps on the device; the losses."""
    torch.manual_seed(seed)
    model = case.make().to(device=device, dtype=dtype)
    inputs, targets = case.data()
    inputs = inputs.to(device, dtype if inputs.is_floating_point() else inputs.dtype)
    targets = targets.to(device)
    stepping = optimizer(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
            loss = functional.cross_entropy(model(inputs).float(), targets)
        stepping.zero_grad()
        loss.backward()
        stepping.step()
        losses.append(loss.item())
    return losses
