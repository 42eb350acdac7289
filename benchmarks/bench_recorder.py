"""What the flight recorder and why-nan cost: a transformer's training step, as a ratio to without.

The step of training_step.py. Plain steps and recorded ones take turns in one process; CPU time on
a machine whose device is the host, wall time on a card.
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


def clock(device: str) -> Callable[[], float]:
    """Seconds: of the processor where the host does the work."""
    if device != "cuda" or not torch.cuda.is_available():
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def ratio(
    step: Callable[[], None],
    tool: Callable[[], Any],
    now: Callable[[], float],
    turns: int,
    steps: int,
) -> tuple[float, float, float, Any]:
    """The median of the turns, the least and the most, and the tool."""
    found: list[float] = []
    last: Any = None
    for _ in range(turns):
        took = []
        for started in (None, tool):
            last = started().start() if started is not None else last
            step()
            begun = now()
            for _ in range(steps):
                step()
            took.append(now() - begun)
            if started is not None:
                last.stop()
        found.append(took[1] / took[0])
    return statistics.median(found), min(found), max(found), last


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="dipu")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
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
        for name, tool in (("recorder", op_tools.FlightRecorder), ("why-nan", op_tools.WhyNan)):
            middle, low, high, last = ratio(step, tool, now, given.turns, given.steps)
            rows[name] = {"ratio": middle, "least": low, "most": high}
            if name == "recorder":
                size = sum(path.stat().st_size for path in last.ring.paths)
                rows[name] |= {"own": last.budget.share, "bytes a step": size / last.steps}
    made = Table(
        "tool",
        "ratio",
        "least",
        "most",
        "its own count",
        "bytes a step",
        title=f"plain step {plain * 1e3:.1f} ms",
    )
    for name, row in rows.items():
        own = f"{row['own']:.2%}" if "own" in row else ""
        size = f"{row['bytes a step']:.0f}" if "own" in row else ""
        made.add_row(name, *(f"{row[key]:.3f}" for key in ("ratio", "least", "most")), own, size)
    Console().print(made)
    if given.json is not None:
        given.json.write_text(json.dumps({"plain_ms": plain * 1e3, **rows}))


if __name__ == "__main__":
    main()
