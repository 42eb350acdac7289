"""How many calls of training steps OpAutoCompare judges in full, by a sample, or not at all.

Each model has few layers, with tensors above the limit of a call that is judged in full. Large
calls without a rule are named. `--write` puts the table into the pages of HEADERS:

    python benchmarks/sampled_coverage.py [--write] [model ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_dipu  # noqa: F401  (registers the reference device)
from op_tools import OpAutoCompare
from op_tools.compare.tool import NO_RULE
from op_tools.core.call import Level

DEVICE = "dipu"
LEVELS: tuple[Level, ...] = ("api", "aten")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class DecoderLayer(nn.Module):
    """Attention with grouped keys and rotary positions; a gated MLP, or experts of it."""

    def __init__(self, width: int, heads: int, groups: int, experts: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.router = nn.Linear(width, experts, bias=False) if experts > 1 else None
        self.gates = nn.ModuleList(
            nn.Linear(width, 4 * width, bias=False) for _ in range(max(experts, 1))
        )
        self.downs = nn.ModuleList(
            nn.Linear(2 * width, width, bias=False) for _ in range(max(experts, 1))
        )

    def expert(self, at: int, x: Tensor) -> Tensor:
        gate, up = self.gates[at](x).chunk(2, -1)
        result: Tensor = self.downs[at](F.silu(gate) * up)
        return result

    def experts(self, x: Tensor) -> Tensor:
        assert self.router is not None
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = F.softmax(self.router(rows).float(), -1).topk(2, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        mask = F.one_hot(chosen, len(self.gates)).permute(2, 1, 0)
        result = torch.zeros_like(rows)
        for at in range(len(self.gates)):
            place, row = torch.where(mask[at])
            part = self.expert(at, rows[row]) * weights[row, place, None]
            result.index_add_(0, row, part)
        return result.view_as(x)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        inner = self.first(x)
        query = self.query(inner).view(batch, length, self.heads, self.size).transpose(1, 2)
        both = self.key_value(inner).view(batch, length, 2 * self.groups, self.size)
        key, value = both.transpose(1, 2).chunk(2, 1)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        repeats = self.heads // self.groups
        key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).contiguous().view(batch, length, width))
        inner = self.second(x)
        return x + (self.expert(0, inner) if self.router is None else self.experts(inner))


class Decoder(nn.Module):
    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(DecoderLayer(256, 4, 2, experts) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(256), nn.Linear(256, 1000, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        steps = torch.arange(words.shape[1], device=words.device).float()
        speeds = 1 / 10000 ** (torch.arange(0, 64, 2, device=words.device).float() / 64)
        angles = torch.outer(steps, speeds).repeat(1, 2)
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 256), nn.Embedding(256, 256)
        self.kinds, self.norm = nn.Embedding(2, 256), nn.LayerNorm(256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, F.gelu, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.places(places) + self.kinds(torch.zeros_like(words))
        x = F.dropout(self.norm(x), 0.1)
        x = self.layers(x, src_key_padding_mask=words == 0)
        labels = words.masked_fill(words % 7 != 0, -100)
        return F.cross_entropy(self.head(x).transpose(1, 2), labels)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 8, 8)
        self.first = nn.Parameter(torch.zeros(1, 1, 256))
        self.places = nn.Parameter(torch.randn(1, 65, 256))
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        logits = self.head(self.norm(self.layers(x))[:, 0])
        return F.cross_entropy(logits, torch.arange(len(x), device=x.device), label_smoothing=0.1)


class Bottleneck(nn.Module):
    def __init__(self, given: int, inner: int, made: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner),
            nn.ReLU(True), nn.Conv2d(inner, made, 1, bias=False), nn.BatchNorm2d(made),
        )  # fmt: skip
        self.short = nn.Sequential(
            nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.blocks = nn.Sequential(Bottleneck(64, 64, 256, 1), Bottleneck(256, 128, 512, 2))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(torch.flatten(self.pool(self.blocks(self.stem(images))), 1))
        return F.cross_entropy(logits, torch.arange(len(images), device=images.device))


class UNet(nn.Module):
    """With time embedding, group norm, attention in the middle and both ways up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64))
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.norm, self.inner = nn.GroupNorm(8, 64), nn.Conv2d(64, 64, 3, padding=1)
        self.down, self.middle = nn.AvgPool2d(2), nn.MultiheadAttention(64, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(64, 64, 2, 2)
        self.joined, self.instance = nn.Conv2d(128, 64, 3, padding=1), nn.InstanceNorm2d(64)
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        steps = torch.arange(len(images), device=images.device).float()[:, None]
        speeds = torch.exp(-torch.arange(32, device=images.device).float() / 4)
        time = self.time(torch.cat([torch.sin(steps * speeds), torch.cos(steps * speeds)], -1))
        high = self.first(images) + time[:, :, None, None]
        high = high + self.inner(F.silu(self.norm(high)))
        low = self.down(high)
        rows = low.flatten(2).transpose(1, 2)
        low = (rows + self.middle(rows, rows, rows)[0]).transpose(1, 2).reshape(low.shape)
        up = self.up(low) + F.interpolate(low, scale_factor=2, mode="nearest")
        up = up + F.interpolate(low, scale_factor=2, mode="bilinear")
        out = self.last(F.silu(self.instance(self.joined(torch.cat([up, high], 1)))))
        return F.mse_loss(out, images)


class Mamba(nn.Module):
    """One selective state space block, with its scan as a loop and as sums."""

    def __init__(self, width: int = 256, state: int = 8) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(1000, width), nn.RMSNorm(width)
        self.enter, self.leave = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.mix = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.select = nn.Linear(2 * width, 16 + 2 * state)
        self.delta = nn.Linear(16, 2 * width)
        self.log_a = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(2 * width, 1))
        self.skip, self.state = nn.Parameter(torch.ones(2 * width)), state
        self.head = nn.Linear(width, 1000)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        inner, gate = self.enter(self.norm(x)).chunk(2, -1)
        mixed = self.mix(inner.transpose(1, 2))[..., : words.shape[1]].transpose(1, 2)
        mixed = F.silu(mixed)
        delta, b, c = self.select(mixed).split([16, self.state, self.state], -1)
        delta = F.softplus(self.delta(delta))
        a = torch.exp(delta[..., None] * -torch.exp(self.log_a))
        add = (delta * mixed)[..., None] * b[:, :, None]
        h = torch.zeros_like(a[:, 0])
        made = []
        for at in range(words.shape[1]):
            h = a[:, at] * h + add[:, at]
            made.append((h * c[:, at, None]).sum(-1))
        y = torch.stack(made, 1) + mixed * self.skip
        y = y + torch.einsum("bldn,bln->bld", add.cumsum(1), c) * torch.tril(torch.ones_like(y))
        x = x + self.leave(y * F.silu(gate))
        return F.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def words() -> Tensor:
    return torch.randint(0, 1000, (4, 160))


def images(size: int = 64) -> Callable[[], Tensor]:
    return lambda: torch.randn(8, 3, size, size)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "llama": (Decoder, words),
    "mixtral": (lambda: Decoder(4), words),
    "bert": (Bert, words),
    "vit": (Vit, images()),
    "resnet": (ResNet, images(128)),
    "unet": (UNet, images(32)),
    "mamba": (Mamba, lambda: torch.randint(0, 1000, (4, 24))),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Row:
    """How many calls of one training step were judged in full, by a sample, or not at all."""

    model: str
    level: str
    full: int
    sampled: int
    left_out: dict[str, int]  # by reason
    operators: dict[str, int]  # large calls that no rule is for
    wrong: list[str]  # and suspects

    @property
    def cells(self) -> tuple[str, ...]:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in self.left_out.items())
        return self.model, self.level, str(self.full), str(self.sampled), reasons or "-"


def measured(name: str, level: Level) -> Row:
    """One training step of a model under OpAutoCompare."""
    build, data = MODELS[name]
    torch.manual_seed(0)
    model, batch = build().to(DEVICE), data().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    with contextlib.redirect_stdout(io.StringIO()), OpAutoCompare(level=level) as tool:
        step(model, optimizer, batch)
    sampled = tool.counts.calls
    reasons: Counter[str] = Counter()
    for (reason, _), count in tool.skipped.items():
        reasons[reason] += count
    operators = {word: n for (reason, word), n in tool.skipped.items() if reason == NO_RULE}
    wrong = [f"{failure.name} {failure.item}" for failure in tool.failures]
    suspects = [line for line in tool.samples() if "suspect" in line]
    return Row(
        name, level, tool.compared - sampled, sampled, dict(reasons), operators, wrong + suspects
    )


def table(rows: list[Row], header: tuple[str, ...]) -> str:
    """The rows as a table in Markdown."""
    lines = [header, tuple("---" for _ in header), *(row.cells for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


HEADERS = {
    "docs/explanation/comparison.md": ("model", "level", "in full", "by a sample", "not compared"),
    "docs/zh/explanation/comparison.md": ("模型", "层次", "整个判定", "按样本判定", "没有判定"),
}
BEGIN, END = "<!-- sampled_coverage: begin -->\n", "<!-- sampled_coverage: end -->\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    rows = []
    for name in options.models or MODELS:
        for level in LEVELS:
            row = measured(name, level)
            rows.append(row)
            print(*row.cells, row.operators or "", row.wrong or "", sep=" | ", flush=True)
    if options.write:
        for page, header in HEADERS.items():
            path = Path(__file__).parents[1] / page
            before, rest = path.read_text("utf-8").split(BEGIN)
            text = before + BEGIN + table(rows, header) + END + rest.split(END)[1]
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
