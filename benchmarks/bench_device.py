"""Cost of the device against plain CPU: per op, per training step, at import and at build."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import torch_dipu  # noqa: F401

CALLS, REPEATS, STEPS = 1000, 40, 12
AIMS = {
    "a + b": 1.8,
    "add(out=)": 1.4,
    "view": 1.1,
    "empty": 1.1,
    "training step, median": 1.05,
    "import after torch": 0.2,
    "first build": 90.0,
}


@dataclass(frozen=True)
class Row:
    """One measurement: a ratio of device to CPU, or seconds where there is no counterpart."""

    what: str
    cpu: float | None
    device: float
    unit: str

    @property
    def figure(self) -> float:
        """The value that is compared with the aim."""
        return self.device / self.cpu if self.cpu else self.device

    @property
    def aim(self) -> float | None:
        return AIMS.get(self.what)

    @property
    def ok(self) -> bool | None:
        return None if self.aim is None else self.figure <= self.aim


def tiny_ops(device: str) -> dict[str, Callable[[], object]]:
    """Return calls on four floats (8 by 8 for the product) on one device."""
    a, b, out = (torch.ones(4, device=device) for _ in range(3))
    square = torch.ones(8, 8, device=device)
    host = torch.ones(4)
    return {
        "a + b": lambda: a + b,
        "add(out=)": lambda: torch.add(a, b, out=out),
        "add_": lambda: a.add_(b),
        "relu": lambda: torch.relu(a),
        "mm": lambda: torch.mm(square, square),
        "view": lambda: a.view(2, 2),
        "empty": lambda: torch.empty(4, device=device),
        "to (copy from the host)": lambda: host.to(device, copy=True),
    }


def bench_ops() -> list[Row]:
    """Measure microseconds per call, the least of many turns, CPU and device alternating."""
    cpu, device = tiny_ops("cpu"), tiny_ops("dipu")
    rows = []
    for what in cpu:
        best = {"cpu": float("inf"), "device": float("inf")}
        for _ in range(REPEATS):
            for name, call in (("cpu", cpu[what]), ("device", device[what])):
                best[name] = min(best[name], _seconds(call) / CALLS * 1e6)
        rows.append(Row(what, best["cpu"], best["device"], "us"))
    return rows


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - started


class Trainer:
    """A 4-layer transformer, d=256, with its optimizer and one batch (4 by 128) on one device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
        self.x: Tensor = torch.randn(4, 128, 256).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-4)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        """Run and time one step."""
        started = time.perf_counter()
        self.optimizer.zero_grad()
        loss = (self.net(self.x) - self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - started)


def bench_step() -> tuple[list[Row], float]:
    """Measure milliseconds per training step, alternating; and the difference of the losses."""
    cpu, device = Trainer("cpu"), Trainer("dipu")
    for _ in range(STEPS + 2):
        cpu.step()
        device.step()
    rows = []
    for name, choose in (("median", statistics.median), ("least", min)):
        here, there = (choose(trainer.seconds[2:]) * 1e3 for trainer in (cpu, device))
        rows.append(Row(f"training step, {name}", here, there, "ms"))
    pairs = zip(cpu.losses, device.losses, strict=True)
    return rows, max(abs(a - b) for a, b in pairs)


def bench_import(times: int = 5) -> Row:
    """Measure the seconds that `import torch_dipu` adds to `import torch`, in new interpreters."""
    source = (
        "import time, torch; t = time.perf_counter(); import torch_dipu; "
        "print(time.perf_counter() - t)"
    )
    return Row("import after torch", None, min(float(_python(source)) for _ in range(times)), "s")


def bench_build() -> Row:
    """Measure the seconds of a first build, into an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "torch_dipu.build"],
            env={**os.environ, "DIPU_BUILD_DIR": folder},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return Row("first build", None, time.perf_counter() - started, "s")


def _python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    return done.stdout


def show(console: Console, rows: list[Row]) -> None:
    """Print one table: what, CPU, device, ratio, aim, ok."""
    table = Table(title=f"The device against the CPU, torch {torch.__version__}, 1 thread")
    for column in ("what", "CPU", "device", "ratio", "aim", "ok"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        ratio = "" if row.cpu is None else f"{row.figure:.2f}"
        cpu = "" if row.cpu is None else f"{row.cpu:.2f} {row.unit}"
        aim = "" if row.aim is None else f"{row.aim:g}"
        verdict = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.ok]
        table.add_row(row.what, cpu, f"{row.device:.2f} {row.unit}", ratio, aim, verdict)
    console.print(table)


def main() -> int:
    """Measure and print; slowness is no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="time a first build too (a minute)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = bench_ops()
    steps, apart = bench_step()
    rows += [*steps, bench_import()]
    if options.build:
        rows.append(bench_build())
    show(console, rows)
    console.print(f"Losses of the training steps differ by at most {apart:.1e}.", highlight=False)
    if options.json:
        entries = [asdict(row) | {"ratio": row.figure, "aim": row.aim} for row in rows]
        options.json.write_text(json.dumps(entries, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
