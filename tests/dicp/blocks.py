"""Small models: a llama layer and a convolution block, written plainly."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return h.to(x.dtype) * self.weight


def turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class LlamaLayer(nn.Module):
    def __init__(self, size: int = 32, heads: int = 4, inner: int = 48) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, size, bias=False)
        self.norm1, self.norm2 = RMSNorm(size), RMSNorm(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, size = x.shape
        shape = (batch, length, self.heads, size // self.heads)
        h = self.norm1(x)
        q, k, v = (f(h).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, size))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def llama(length: int = 6, batch: int = 2) -> tuple[LlamaLayer, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    angles = torch.arange(length)[:, None] * torch.rand(4)[None]
    angles = torch.cat((angles, angles), -1)
    return LlamaLayer().eval(), (torch.randn(batch, length, 32), angles.cos(), angles.sin())


def convolutions() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), norm, nn.ReLU())
    return model.eval(), (torch.randn(2, 3, 6, 6),)
