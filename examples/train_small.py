"""A small transformer that learns to count, and prints whether it does. Written for CUDA.

The program of docs/tutorials/wrong_loss.md. It runs in seconds:
`deeplink run examples/train_small.py`.
Under torchrun each rank has its own device and batches.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, WIDTH, HEADS = 16, 32, 4


class Attention(nn.Module):
    """Attention of each position to those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return made


class Model(nn.Module):
    """One block."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        hidden = hidden + self.attention(self.norm(hidden))
        logits: Tensor = self.head(hidden + self.mlp(hidden))
        return logits


def placed(model: nn.Module) -> nn.Module:
    """Move the model to the device; each of several ranks has its own."""
    if not dist.is_torchelastic_launched():
        return model.cuda()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(dist.get_rank())  # of the batches; the model is the same for all
    return nn.parallel.DistributedDataParallel(model.cuda())


def main() -> int:
    """Train; return 0 when the loss falls as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = placed(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        start = torch.randint(0, WORDS, (16, 1))
        rows = ((start + 3 * torch.arange(9)) % WORDS).cuda()
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    well = steps < 20 or losses[-1] < 0.5
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}: {'as it should be' if well else 'WRONG'}")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
