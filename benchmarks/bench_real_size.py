"""What the operator tools cost on a model of real size, beside torch's own tools, in one table.

A Llama with AdamW in bfloat16: 0.85 B parameters and 4 x 1024 tokens on a GPU, 6 layers of width
512 and 2 x 128 tokens on the reference device. Every row is a ratio to plain steps of the same
process, taken right before and after the row: the mean step without the first one, the first step,
and the peak of memory (on a GPU). Tools that keep to a share of the time are measured for longer:
the mean includes the steps in which they measure. For a tool that writes files, "of a write" is
what the tool adds, its stop included, as a multiple of the time that a plain write of as many bytes
takes. "CPU" is the ratio of the CPU time of all threads, which is what to read on the reference
device of a busy machine. Run it as `python -m benchmarks.bench_real_size [--device cuda]`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from op_tools.core.filters import Selection


@dataclass(frozen=True)
class Size:
    """The shape of the model and of a batch."""

    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    words: int
    batch: int
    length: int


SIZES = {
    "cuda": Size(2048, 5632, 16, 32, 8, 32_000, 4, 1024),
    "dipu": Size(512, 1408, 6, 8, 4, 8_000, 2, 128),
}


class Layer(nn.Module):
    """Grouped attention with rotary positions, and a gated feed-forward part."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size, self.head = size, size.width // size.heads
        narrow = self.head * size.groups
        self.before, self.between = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, narrow, bias=False)
        self.value = nn.Linear(size.width, narrow, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.gate = nn.Linear(size.width, size.inner, bias=False)
        self.up = nn.Linear(size.width, size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.before(x)
        query, key, value = (
            part(y).view(batch, length, -1, self.head).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = (_turned(part, cosine, sine) for part in (query, key))
        repeats = self.size.heads // self.size.groups
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        made: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return made


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-right, left], -1) * sine


class Model(nn.Module):
    """A decoder with its loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        head = self.size.width // self.size.heads
        places = torch.arange(self.size.length, device=words.device)[:, None]
        turns = 10_000 ** (-torch.arange(0, head, 2, device=words.device) / head)
        angles = (places * turns).repeat(1, 2)
        x = self.words(words)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), words.roll(-1, 1).flatten())


def training(device: str) -> Callable[[], None]:
    """One step of a training, made on the device."""
    size = SIZES[device]
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(size).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(0, size.words, (size.batch, size.length)).to(device)

    def step() -> None:
        model(words).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def _profiler() -> Iterator[None]:
    with torch.profiler.profile():
        yield


def _debug_mode() -> AbstractContextManager[Any]:
    from torch.utils._debug_mode import DebugMode

    return DebugMode()


_FIRST = Selection(first=1)


def _capture(**options: Any) -> op_tools.OpCapture:
    return op_tools.OpCapture(ops=["torch.nn.functional.linear"], **options)


ROWS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch.profiler": _profiler,
    "torch DebugMode": _debug_mode,
    "torch detect_anomaly": torch.autograd.detect_anomaly,
    "tools that want no operator": lambda: op_tools.OpTimeMeasure(ops=["torch.sinc"]),
    "time": op_tools.OpTimeMeasure,
    "statistics, api": lambda: op_tools.OpCapture(mode="statistics"),
    "statistics, aten": lambda: op_tools.OpCapture(mode="statistics", level="aten"),
    "overflow": op_tools.OpOverflowCheck,
    "flight recorder": op_tools.FlightRecorder,
    "guard": op_tools.Guard,
    "compare": op_tools.OpAutoCompare,
    "compare, aten": lambda: op_tools.OpAutoCompare(level="aten"),
    "compare, budget 25%": lambda: op_tools.OpAutoCompare(budget="25%"),
    "compare, no budget": lambda: op_tools.OpAutoCompare(budget="none"),
    "compare, once per signature": lambda: op_tools.OpAutoCompare(mode="signature"),
    "compare, every element": lambda: op_tools.OpAutoCompare(whole=True),
    "capture of linear, packed": lambda: _capture(format="packed"),
    "capture of linear, packed, first 1": lambda: _capture(format="packed", select=_FIRST),
    "capture of linear, folders, first 1": lambda: _capture(format="folders", select=_FIRST),
    "capture, packed, first 1": lambda: op_tools.OpCapture(format="packed", select=_FIRST),
    "fallback of silu": lambda: op_tools.OpFallback(ops=["torch.nn.functional.silu"]),
    "cast of linear to float32": lambda: op_tools.OpDtypeCast(
        ops=["torch.nn.functional.linear"], casts={"torch.bfloat16": "torch.float32"}
    ),
}
# Tools that keep to a share of the time, which they measure first: times as many steps.
LONGER = {"guard": 50, "compare": 10, "compare, aten": 10, "compare, budget 25%": 10}
SLOW = ("compare, every element",)  # minutes for a step on a GPU: asked for by name


def _seconds(step: Callable[[], None], device: str) -> tuple[float, float]:
    """The time of a step, and the CPU time of all threads of this process in it."""
    module: Any = torch.get_device_module(device)
    module.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    step()
    module.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu


def _peak(device: str) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None


def _written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _plain_write(size: int, folder: Path) -> float:
    """Seconds that a plain write of so many bytes takes."""
    data, path = memoryview(bytes(range(256)) * (1 << 16)), folder / "plain_write"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, len(data)):
            file.write(data[: size - at])
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def measure(
    step: Callable[[], None],
    tool: Callable[[], AbstractContextManager[Any]],
    device: str,
    steps: int,
    folder: Path,
    longer: int = 1,
) -> dict[str, float | None]:
    """One row: ratios of the mean and of the first step, of CPU time, and of the peak of memory."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    plain = [_seconds(step, device) for _ in range(steps)]
    plain_peak = _peak(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, start = _written(folder), time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(tool())
        first, *others = (_seconds(step, device) for _ in range(steps * longer + 1))
    total, size = time.perf_counter() - start, _written(folder) - before
    peak = _peak(device)
    write = _plain_write(size, folder) if size > 1 << 26 else None
    plain += [_seconds(step, device) for _ in range(steps)]
    usual, usual_cpu = (statistics.median(parts) for parts in zip(*plain, strict=True))
    return {
        "mean": statistics.mean(seconds for seconds, _ in others) / usual,
        "first": first[0] / usual,
        "memory": peak / plain_peak if peak and plain_peak else None,
        "of_a_write": (total - (1 + len(others)) * usual) / write if write else None,
        "gigabytes": size / 2**30 if write else None,
        "plain_seconds": usual,
        "cpu": statistics.mean(cpu for _, cpu in others) / usual_cpu,
        "cpu_first": first[1] / usual_cpu,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=SIZES, default="dipu")
    parser.add_argument("--steps", type=int, default=4, help="steps of each part of a row")
    parser.add_argument("--only", action="append", help="rows whose name contains this")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.device == "dipu":
        import torch_dipu  # noqa: F401
    step = training(options.device)
    for _ in range(3):
        step()
    rows: dict[str, dict[str, float | None]] = {}
    table = Table(title=f"{SIZES[options.device]}, ratios to the plain step")
    columns = "tool,mean step,first step,peak memory,of a write,GiB,plain step (s),CPU,CPU first"
    for name in columns.split(","):
        table.add_column(name)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OP_TOOLS_RESULTS"] = folder
        for name, tool in ROWS.items():
            wanted = any(part in name for part in options.only or ())
            if not wanted and (options.only or name in SLOW):
                continue
            many = LONGER.get(name, 1)
            found = rows[name] = measure(
                step, tool, options.device, options.steps, Path(folder), many
            )
            shown = ["" if value is None else f"{value:.2f}" for value in found.values()]
            table.add_row(name, *shown)
            console.print(f"{name}: {shown[0]}", highlight=False)
    console.print(table)
    if options.json:
        options.json.write_text(
            json.dumps({"device": options.device, "steps": options.steps, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
