"""Blocks compiled for CUDA: `inductorgraph` against torch's inductor with CUDA graphs.

    python -m benchmarks.bench_compile_cuda --json blocks.json

Candidates alternate in one process; a time is the median over turns of some calls between two
synchronisations. `--seconds` starts no block after this time: compiling takes most of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from deeplink_vendors.cuda.graph import backend
from dicp.conformance.networks import LlamaLayer, rope_tables

TURNS, CALLS, WARM = 24, 20, 12
HELD = "inductorgraph, last result held"  # as in `x = model(x)`
FORCED = {"layout_optimization": True, "force_layout_optimization": True}


@dataclass(frozen=True)
class Block:
    """A module and the arguments of a call; trained: forward, backward and no step."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    trained: bool = False


@dataclass(frozen=True)
class Row:
    """One block by one candidate: milliseconds, and the largest difference from eager's result."""

    block: str
    candidate: str
    milliseconds: float
    over_inductor: float
    over_eager: float
    error: float
    compile_seconds: float


class Layer(nn.Module):
    """A llama layer whose only argument is its input."""

    def __init__(self, size: int, heads: int, shared: int, inner: int, length: int) -> None:
        super().__init__()
        self.layer = LlamaLayer(size, heads, shared, inner)
        cos, sin = rope_tables(torch.arange(length), size // heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x, self.cos, self.sin, None)[0]
        return made


class Basic(nn.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.second = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(size), nn.BatchNorm2d(size)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(h)) + x)


def llama(wide: bool, batch: int, length: int, trained: bool = False) -> Block:
    sizes = (4096, 32, 8, 14336) if wide else (1024, 8, 8, 2816)
    module = Layer(*sizes, length).to("cuda", torch.bfloat16).train(trained)
    return Block(module, (_random(batch, length, sizes[0], dtype=torch.bfloat16),), trained)


def resnet(dtype: torch.dtype, last: bool, trained: bool = False) -> Block:
    """A block of 32 images of 56 x 56, its tensors in NCHW, or (`last`) in NHWC."""
    layout = torch.channels_last if last else torch.contiguous_format
    module: Any = Basic().to("cuda", dtype).train(trained)
    x = _random(32, 64, 56, 56, dtype=dtype)
    return Block(module.to(memory_format=layout), (x.to(memory_format=layout),), trained)


def _random(*sizes: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*sizes, device="cuda", dtype=dtype)


HALF, FLOAT = torch.float16, torch.float32
BLOCKS: dict[str, Callable[[], Block]] = {
    "resnet block, float16, NCHW": lambda: resnet(HALF, False),
    "resnet block, float16, NHWC": lambda: resnet(HALF, True),
    "llama layer of 8B, 1024 tokens": lambda: llama(True, 1, 1024),
    "llama layer of 8B, 16 x 1 token": lambda: llama(True, 16, 1),
    "llama layer of width 1024, 128 tokens": lambda: llama(False, 1, 128),
    "llama layer of width 1024, 1 token": lambda: llama(False, 1, 1),
    "training, resnet block, float32": lambda: resnet(FLOAT, False, True),
    "training, llama layer of width 1024, 4 x 512": lambda: llama(False, 4, 512, True),
}


def candidates(block: Block) -> dict[str, Any]:
    """Return how each is compiled. `forced` is inductor with its convolutions in NHWC."""
    made: dict[str, Any] = {
        "inductor": {"mode": "reduce-overhead"},
        "inductor, result copied": {"mode": "reduce-overhead"},
        "inductorgraph": {"backend": backend},
        "inductorgraph, reduce-overhead": {"backend": backend, "mode": "reduce-overhead"},
    }
    if isinstance(block.module, Basic) and not block.trained:
        made["inductor, forced NHWC"] = {"options": {"triton.cudagraphs": True, **FORCED}}
    if block.trained:
        made["inductor without CUDA graphs"] = {}
    return made


def measure(name: str) -> list[Row]:
    """Measure all candidates on one block, and eager."""
    torch.manual_seed(0)
    torch.compiler.reset()
    block = BLOCKS[name]()
    with torch.set_grad_enabled(block.trained):
        runs = {"eager": _call(block, block.module)}
        expected, errors, seconds = runs["eager"](), {"eager": 0.0}, {"eager": 0.0}
        for candidate, options in candidates(block).items():
            start = time.perf_counter()
            compiled = torch.compile(block.module, fullgraph=True, **options)
            run = _call(block, _copying(compiled) if "copied" in candidate else compiled)
            made = [x.clone() for x in run()]
            seconds[candidate] = time.perf_counter() - start
            errors[candidate] = max(_gap(a, b) for a, b in zip(made, expected, strict=True))
            for _ in range(WARM):
                run()
            runs[candidate] = run
        if not block.trained:
            runs[HELD], errors[HELD], seconds[HELD] = _holding(runs["inductorgraph"]), 0.0, 0.0
        times = _turns(runs)
    return [
        Row(
            name, one, each * 1e3, times["inductor"] / each, times["eager"] / each,
            errors[one], seconds[one],
        )
        for one, each in times.items()
    ]  # fmt: skip


def _call(block: Block, model: Callable[..., Any]) -> Callable[[], list[Tensor]]:
    if not block.trained:
        return lambda: [model(*block.arguments)]

    def step() -> list[Tensor]:
        block.module.zero_grad()
        model(*block.arguments).float().square().mean().backward()
        return [p.grad for p in block.module.parameters() if p.grad is not None]

    return step


def _copying(model: Callable[..., Any]) -> Callable[..., Tensor]:
    """Wrap a model so that its result outlives the next call."""
    return lambda *args: model(*args).clone()


def _holding(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """Wrap a call so that its result is alive in the next one."""
    last: list[Tensor] = []

    def call() -> list[Tensor]:
        nonlocal last
        last = run()
        return last

    for _ in range(WARM):
        call()
    return call


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def _turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs.items())
    for number in range(TURNS):
        first = number % len(order)
        for name, run in order[first:] + order[:first]:
            run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                run()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / CALLS)
    return {name: statistics.median(part) for name, part in times.items()}


def show(rows: list[Row]) -> Table:
    """Build the table of rows; more than 1 is faster."""
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for heading in ("block", "candidate", "ms", "inductor /", "eager /", "error", "compile s"):
        table.add_column(heading, justify="left" if heading in ("block", "candidate") else "right")
    for row in rows:
        table.add_row(
            row.block, row.candidate, f"{row.milliseconds:.3f}", f"{row.over_inductor:.2f}",
            f"{row.over_eager:.2f}", f"{row.error:.1e}", f"{row.compile_seconds:.1f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Measure the selected blocks, print the table, and write it with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block", action="append", default=[], help="part of a block's name")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    start = time.perf_counter()
    for name in BLOCKS:
        asked = not options.block or any(part in name for part in options.block)
        if asked and time.perf_counter() - start < options.seconds:
            rows += measure(name)
            if options.json:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    Console(width=140).print(show(rows))


if __name__ == "__main__":
    main()
