"""Train a small transformer on CUDA, and again on the CPU: the losses must agree.

The program is written for CUDA and has no other requirement.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

SEED = 1234
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 16, 96, 4, 3
TOLERANCE = 1e-3  # of a loss: float32 sums in another order drift apart slowly while training
EPILOG = """
What you see: the loss of a character model on a text made by a tiny grammar, on the device, on the
CPU, and their difference. Both runs start from the same seed and read the same batches.
The exit status is 1 when the losses differ beyond float tolerance or do not fall.

  python examples/train_cuda_style.py                      on an NVIDIA GPU
  python -m ditorch run examples/train_cuda_style.py       on the accelerator at hand
  deeplink run examples/train_cuda_style.py --steps 200    the same, longer
"""


@dataclass(frozen=True)
class Run:
    """The losses and the duration of one training run."""

    losses: list[float]
    seconds: float


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with its norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.join = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        fed: Tensor = self.feed(x)
        return x + fed


class Decoder(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place[: tokens.shape[1]]
        logits: Tensor = self.head(self.blocks(x))
        return logits


def make_text(sentences: int = 3000) -> str:
    """Return sentences of a tiny grammar, equal in every run."""
    chance = random.Random(SEED)
    nouns = ["the device", "a stream", "the host", "one kernel", "the cache", "a tensor"]
    verbs = ["waits for", "reads", "writes", "launches", "frees", "copies"]
    ends = [".", " again.", " at last.", ", then sleeps."]
    return " ".join(
        f"{chance.choice(nouns)} {chance.choice(verbs)} {chance.choice(nouns)}{chance.choice(ends)}"
        for _ in range(sentences)
    )


def train(device: torch.device, steps: int, report: Callable[[int, float], None]) -> Run:
    """Return the losses of one run; seed and batches are equal on either device."""
    torch.manual_seed(SEED)
    torch.cuda.manual_seed_all(SEED)
    text = make_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model = Decoder(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model = model.cuda() if device.type == "cuda" else model  # as many programs do, after it
    starts = torch.randint(0, len(data) - CONTEXT - 1, (steps, BATCH))
    losses = []
    started = time.perf_counter()
    for step in range(steps):
        windows = torch.stack([data[at : at + CONTEXT + 1] for at in starts[step]]).to(device)
        logits = model(windows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        report(step, losses[-1])
    return Run(losses, time.perf_counter() - started)


def watch(console: Console, label: str, device: torch.device, steps: int) -> Run:
    """Train with a progress bar on a terminal, or plain lines elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(label, total=steps)

        def report(step: int, loss: float) -> None:
            progress.update(bar, advance=1, description=f"{label}  loss {loss:.4f}")
            if not console.is_terminal and step % max(1, steps // 4) == 0:
                console.print(f"{label}: step {step + 1}/{steps}, loss {loss:.4f}")

        return train(device, steps, report)


def show(console: Console, label: str, here: Run, cpu: Run) -> None:
    """Print the losses of both at some of the steps."""
    table = Table(title="Losses")
    for column in ("step", label, "CPU", "difference"):
        table.add_column(column, justify="right")
    steps = len(here.losses)
    for step in sorted({0, *range(9, steps, max(10, steps // 6)), steps - 1}):
        mine, wanted = here.losses[step], cpu.losses[step]
        table.add_row(str(step + 1), f"{mine:.6f}", f"{wanted:.6f}", f"{abs(mine - wanted):.1e}")
    table.add_row("seconds", f"{here.seconds:.1f}", f"{cpu.seconds:.1f}", "")
    console.print(table)


def judge(console: Console, here: Run, cpu: Run) -> int:
    """Print the closing line; return the exit status."""
    pairs = zip(here.losses, cpu.losses, strict=True)
    apart = max(abs(mine - wanted) for mine, wanted in pairs)
    first, last = here.losses[0], here.losses[-1]
    agrees, falls = apart <= TOLERANCE, last < first
    console.print(
        f"Loss {first:.4f} -> {last:.4f} ({'falls' if falls else 'does NOT fall'}); largest "
        f"difference from the CPU {apart:.1e} ({'within' if agrees else 'BEYOND'} {TOLERANCE:g}).",
        style="green" if agrees and falls else "bold red",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if agrees and falls else 1


def main() -> int:
    """Train twice, compare, and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps is {options.steps}; at least 2 are needed to see a loss fall")
    console = Console()
    if not torch.cuda.is_available():
        console.print("No CUDA here. Try: python -m ditorch run examples/train_cuda_style.py")
        return 2
    torch.cuda.reset_peak_memory_stats()
    console.print(f"Training on cuda: {torch.cuda.get_device_name()}", highlight=False)
    here = watch(console, "cuda", torch.device("cuda"), options.steps)
    torch.cuda.synchronize()
    cpu = watch(console, "CPU", torch.device("cpu"), options.steps)
    show(console, "cuda", here, cpu)
    peak = torch.cuda.max_memory_allocated() / 2**20
    console.print(f"Peak memory on cuda: {peak:.1f} MiB", highlight=False)
    return judge(console, here, cpu)


if __name__ == "__main__":
    sys.exit(main())
