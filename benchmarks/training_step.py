"""The training step on which the tools are measured: a 4-layer,
256-wide transformer at length 128.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 4, 256, 8, 128, 4, 1000


class Block(nn.Module):
    """Attention with an explicit mask and softmax, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        more: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + more


class Model(nn.Module):
    """A decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask)
        self.register_buffer("at", torch.arange(LENGTH))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(self.at)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def training(device: str) -> Callable[[], None]:
    """Return one step of training as a function."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1)).to(device)

    def step() -> None:
        scores = model(words[:, :-1])
        F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
