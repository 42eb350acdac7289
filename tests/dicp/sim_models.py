"""Blocks of models for the simulated backends: llama, resnet, bert and mixtral, small and plain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.dicp import blocks

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Residual(nn.Module):
    """The first of ResNet: a stem with its pool, and a block with a way around it."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, size, 7, 2, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(size, size, 3, 1, 1, bias=False) for _ in range(2))
        self.head = nn.Linear(size, 5)
        for norm in self.norms:
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        h = F.relu(self.norms[1](self.convs[0](x)))
        x = F.relu(self.norms[2](self.convs[1](h)) + x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Bert(nn.Module):
    """A layer of BERT: attention and a wide gelu, each with a way around it and a norm after."""

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(20, size)
        self.qkv = nn.ModuleList(nn.Linear(size, size) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 64), nn.Linear(64, size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        batch, length, size = x.shape
        shape = (batch, length, self.heads, size // self.heads)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in self.qkv[:3])
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.qkv[3](a))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Mixtral(nn.Module):
    """The experts of Mixtral: all of them, weighed by the two best of the router."""

    def __init__(self, size: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(size, experts, bias=False)
        self.gate, self.up, self.down = (
            nn.ModuleList(nn.Linear(*shape, bias=False) for _ in range(experts))
            for shape in ((size, 24), (size, 24), (24, size))
        )

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = torch.topk(F.softmax(self.router(x), -1, dtype=torch.float32), 2)
        best = (best / best.sum(-1, keepdim=True)).to(x.dtype)
        result = torch.zeros_like(x)
        for number, (gate, up, down) in enumerate(zip(self.gate, self.up, self.down, strict=True)):
            weight = torch.where(chosen == number, best, 0.0).sum(-1, keepdim=True)
            result = result + weight.to(x.dtype) * down(F.silu(gate(x)) * up(x))
        return result


def resnet() -> Made:
    torch.manual_seed(0)
    return Residual().eval(), (torch.randn(2, 3, 20, 20),)


def bert() -> Made:
    torch.manual_seed(0)
    return Bert().eval(), (torch.randint(20, (2, 6)),)


def mixtral() -> Made:
    torch.manual_seed(0)
    return Mixtral().eval(), (torch.randn(2, 5, 16),)


BLOCKS: dict[str, Callable[[], Made]] = {
    "llama": blocks.llama,
    "resnet": resnet,
    "bert": bert,
    "mixtral": mixtral,
}
