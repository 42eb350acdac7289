# SPDX-License-Identifier: Apache-2.0
"""Networks in plain torch with random weights, for measuring and testing compilers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, size: int = 512, inner: int = 2048) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return made


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size) + 0.1 * torch.randn(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rope_tables(positions: Tensor, size: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of rotary embeddings at some positions."""
    halves = torch.arange(0, size, 2, device=positions.device)
    angles = positions[:, None] * base ** (-halves / size)[None]
    both = torch.cat((angles, angles), -1)
    return both.cos(), both.sin()


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class LlamaLayer(nn.Module):
    def __init__(self, size: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, self.each = heads, shared, size // heads
        self.q = nn.Linear(size, heads * self.each, bias=False)
        self.k = nn.Linear(size, shared * self.each, bias=False)
        self.v = nn.Linear(size, shared * self.each, bias=False)
        self.o = nn.Linear(heads * self.each, size, bias=False)
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        self.before, self.after = RMSNorm(size), RMSNorm(size)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, _ = x.shape
        h = self.before(x)
        q = self.q(h).view(batch, length, self.heads, self.each).transpose(1, 2)
        k = self.k(h).view(batch, length, self.shared, self.each).transpose(1, 2)
        v = self.v(h).view(batch, length, self.shared, self.each).transpose(1, 2)
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        a = F.scaled_dot_product_attention(
            q, self._spread(k), self._spread(v), is_causal=past is None
        )
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), (k, v)

    def _spread(self, x: Tensor) -> Tensor:
        """Repeat each key for the heads that share it."""
        batch, _, length, each = x.shape
        times = self.heads // self.shared
        wide = x[:, :, None].expand(batch, self.shared, times, length, each)
        return wide.reshape(batch, self.heads, length, each)


class Llama(nn.Module):
    """A decoder; `past` holds the keys and values of all layers for the preceding tokens."""

    def __init__(
        self,
        layers: int = 6,
        vocabulary: int = 4096,
        size: int = 512,
        heads: int = 8,
        shared: int = 4,
        inner: int = 1408,
    ) -> None:
        super().__init__()
        self.each, self.shared = size // heads, shared
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList(LlamaLayer(size, heads, shared, inner) for _ in range(layers))
        self.norm, self.head = RMSNorm(size), nn.Linear(size, vocabulary, bias=False)

    def forward(
        self,
        tokens: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: list[tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        x, kept = self.embedding(tokens), []
        for number, layer in enumerate(self.layers):
            x, pair = layer(x, cos, sin, None if past is None else past[number])
            kept.append(pair)
        return self.head(self.norm(x)), kept


class Bottleneck(nn.Module):
    def __init__(self, size: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = _normed(size, inner, 1)
        self.second = _normed(inner, inner, 3, stride)
        self.third = _normed(inner, out, 1)
        same = stride == 1 and size == out
        self.short = nn.Identity() if same else _normed(size, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(x))))
        return F.relu(self.third(h) + self.short(x))


def _normed(size: int, out: int, window: int, stride: int = 1) -> nn.Sequential:
    norm = nn.BatchNorm2d(out)
    with torch.no_grad():  # statistics as after some training
        norm.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return nn.Sequential(nn.Conv2d(size, out, window, stride, window // 2, bias=False), norm)


class ResNet(nn.Module):
    """ResNet-50; with fewer or thinner `stages`, a small one."""

    def __init__(
        self,
        stages: tuple[tuple[int, int, int], ...] = (
            (64, 3, 1),
            (128, 4, 2),
            (256, 6, 2),
            (512, 3, 2),
        ),
        classes: int = 1000,
    ) -> None:
        super().__init__()
        size = stages[0][0]
        self.stem = nn.Sequential(_normed(3, size, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks = []
        for inner, count, stride in stages:
            for number in range(count):
                blocks.append(Bottleneck(size, inner, inner * 4, stride if number == 0 else 1))
                size = inner * 4
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(self.body(self.stem(x)), 1)
        made: Tensor = self.head(pooled.flatten(1))
        return made


class UNetBlock(nn.Module):
    """A residual block with a time embedding, and attention over the image."""

    def __init__(self, size: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, size), nn.GroupNorm(8, out)
        self.conv1 = nn.Conv2d(size, out, 3, padding=1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.short = nn.Identity() if size == out else nn.Conv2d(size, out, 1)
        self.norm3, self.qkv = nn.GroupNorm(8, out), nn.Conv2d(out, 3 * out, 1)
        self.out = nn.Conv2d(out, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h))) + self.short(x)
        batch, size, height, width = h.shape
        q, k, v = (
            t.reshape(batch, 4, size // 4, height * width).transpose(2, 3)
            for t in self.qkv(self.norm3(h)).chunk(3, 1)
        )
        a = F.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        made: Tensor = h + self.out(a.reshape(batch, size, height, width))
        return made


class UNet(nn.Module):
    """A small diffusion model: predicts the noise in an image at a time step."""

    def __init__(self, size: int = 32, channels: int = 4) -> None:
        super().__init__()
        self.size, time = size, 4 * size
        self.time = nn.Sequential(nn.Linear(size, time), nn.SiLU(), nn.Linear(time, time))
        self.start = nn.Conv2d(channels, size, 3, padding=1)
        self.down1 = UNetBlock(size, size, time)
        self.shrink = nn.Conv2d(size, size, 3, 2, 1)
        self.down2 = UNetBlock(size, 2 * size, time)
        self.middle = UNetBlock(2 * size, 2 * size, time)
        self.up1 = UNetBlock(4 * size, size, time)
        self.up2 = UNetBlock(2 * size, size, time)
        self.end = nn.Sequential(
            nn.GroupNorm(8, size), nn.SiLU(), nn.Conv2d(size, channels, 3, 1, 1)
        )

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.size // 2
        rates = torch.exp(-math.log(10000.0) * torch.arange(half, device=x.device) / half)
        angles = step[:, None] * rates[None]
        time = self.time(torch.cat((angles.sin(), angles.cos()), -1).to(x.dtype))
        first = self.down1(self.start(x), time)
        second = self.down2(self.shrink(first), time)
        h = self.up1(torch.cat((self.middle(second, time), second), 1), time)
        h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        made: Tensor = self.end(self.up2(torch.cat((h, first), 1), time))
        return made
