"""Cost of the flight recorder and why-nan: a transformer's training step, as a ratio to plain
steps.

The step of training_step.py. Plain steps and recorded ones alternate in one process; CPU time on a
machine whose device is the host, wall time on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.training_step import training

BEFORE = 4  # steps that are not counted, plain or not: a tool learns the model's names in them


def clock(device: str) -> Callable[[], float]:
    """Return the clock in seconds: CPU time where the host does the work."""
    if device != "cuda" or not torch.cuda.is_available():
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


class Nothing:
    """No tool: its row shows the variation of equal steps on the machine."""

    def start(self) -> Nothing:
        """Do nothing."""
        return self

    def stop(self) -> None:
        """Do nothing."""


def ratio(
    step: Callable[[], None],
    tool: Callable[[], Any],
    now: Callable[[], float],
    turns: int,
    steps: int,
) -> tuple[float, float, float, Any]:
    """Return the median of the turns, the quartiles, and the tool;
    every other turn begins with it.
    """
    found: list[float] = []
    last: Any = None
    for turn in range(turns):
        took = {}
        for watched in (False, True) if turn % 2 else (True, False):
            last = tool().start() if watched else last
            for _ in range(BEFORE):
                step()
            begun = now()
            for _ in range(steps):
                step()
            took[watched] = now() - begun
            if watched:
                last.stop()
        found.append(took[True] / took[False])
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, low, high, last


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="dipu")
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.device == "dipu":
        import torch_dipu  # noqa: F401
    import op_tools
    from deeplink import settings

    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings.watch_children({settings.OP_TOOLS_RESULTS.name: folder})
        step, now = training(given.device), clock(given.device)
        for _ in range(3):
            step()
        begun = now()
        for _ in range(given.steps):
            step()
        plain = (now() - begun) / given.steps
        tools = {
            "nothing": Nothing,
            "recorder": op_tools.FlightRecorder,
            "why-nan": op_tools.WhyNan,
        }
        for name, tool in tools.items():
            if given.only not in name and name != "nothing":
                continue
            middle, low, high, last = ratio(step, tool, now, given.turns, given.steps)
            rows[name] = {"ratio": middle, "a quarter below": low, "a quarter above": high}
            if name == "recorder":
                size = sum(path.stat().st_size for path in last.ring.paths)
                rows[name] |= {"own": last.budget.share, "bytes a step": size / last.steps}
    made = Table(
        "tool",
        "ratio",
        "a quarter below",
        "a quarter above",
        "its own count",
        "bytes a step",
        title=f"plain step {plain * 1e3:.1f} ms",
    )
    for name, row in rows.items():
        own = f"{row['own']:.2%}" if "own" in row else ""
        size = f"{row['bytes a step']:.0f}" if "own" in row else ""
        figures = (row["ratio"], row["a quarter below"], row["a quarter above"])
        made.add_row(name, *(f"{figure:.3f}" for figure in figures), own, size)
    Console().print(made)
    if given.json is not None:
        given.json.write_text(json.dumps({"plain_ms": plain * 1e3, **rows}))


if __name__ == "__main__":
    main()
