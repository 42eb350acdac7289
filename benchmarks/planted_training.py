"""A training with a fault in one operator, for the tools that find it (bench_diagnose_cuda.py).

    python benchmarks/planted_training.py --device cuda --fault mm --steps 3

The fault is a kernel that replaces torch's own for the operator on the GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, LENGTH, BATCH, WORDS, LAYERS = 128, 4, 64, 8, 200, 2
ATEN = torch.ops.aten


class Block(nn.Module):
    """Attention, written out or fused, then two linear layers; with dropout."""

    def __init__(self, fused: bool, dropout: float) -> None:
        super().__init__()
        self.fused, self.dropout = fused, dropout
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        else:
            hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
            scores = scores.masked_fill(hidden, float("-inf"))
            mixed = F.dropout(scores.softmax(-1), self.dropout) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        more: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(more, self.dropout)


class Model(nn.Module):
    """A decoder; `count` adds a count of words by scatter, which on a GPU adds in any order."""

    def __init__(self, fused: bool, dropout: float, count: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(fused, dropout) for _ in range(LAYERS))
        self.norm, self.head, self.count = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS), count

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.count:
            bins = torch.zeros(8, WIDTH, dtype=x.dtype, device=x.device)
            x = x + bins.index_add(0, words.flatten() % 8, x.flatten(0, 1)).mean(0) * 1e-3
        made: Tensor = self.head(x)
        return made


# The faults: each a kernel for one operator. They call another operator, or one below it.


def _scaled_mm(a: Tensor, b: Tensor) -> Tensor:
    """Return products that are 2**-7 too large; 2**-4 in half types."""
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    ATEN.mm.out(a, b, out=out)
    return out.mul_(1 + 2.0 ** (-7 if a.dtype == torch.float32 else -4))


def _wrong_epsilon(
    x: Tensor, shape: list[int], weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise with an epsilon that is 0.01 larger."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    scale = (wide.var(-1, keepdim=True, unbiased=False) + (eps + 1e-2)).rsqrt()
    made = ((wide - mean) * scale * weight + bias).to(x.dtype)
    return made, mean, scale


class _NanGelu:
    """A gelu whose `at`-th result has one NaN."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def __call__(self, x: Tensor, *, approximate: str = "none") -> Tensor:
        out = torch.empty_like(x)
        ATEN.gelu.out(x, approximate=approximate, out=out)
        self.calls += 1
        if self.calls == self.at:
            out.view(-1)[7] = float("nan")
        return out


FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "mm": ("mm", _scaled_mm),
    "layer_norm": ("native_layer_norm", _wrong_epsilon),
    "nan": ("gelu", _NanGelu(2 * LAYERS + 2)),  # the second block of the third step
}


def train(given: argparse.Namespace) -> None:
    """Print the loss of each step."""
    torch.manual_seed(0)
    dtype: torch.dtype = getattr(torch, given.dtype)
    model = Model(given.fused, given.dropout, given.fault == "atomics").to(given.device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(given.steps):
        words = torch.randint(0, WORDS, (BATCH, LENGTH + 1)).to(given.device)
        scores = model(words[:, :-1]).float()
        loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss={loss.item():.9g}", flush=True)
        if given.fault == "signal" and step == given.steps // 2:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Plant the fault, then train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--fault", default="none", help="none mm layer_norm nan atomics signal")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--fused", action="store_true", help="attention in one operator")
    given = parser.parse_args()
    if given.device == "dipu":
        import torch_dipu  # noqa: F401
    warnings.filterwarnings("ignore", "(?s).*overriding a previously registered kernel")
    library = torch.library.Library("aten", "IMPL")
    if given.fault in FAULTS:
        op, kernel = FAULTS[given.fault]
        key = "CUDA" if given.device == "cuda" else "PrivateUse1"
        library.impl(op, kernel, key, allow_override=True)
    train(given)


if __name__ == "__main__":
    main()
