"""Cost of ditorch: calls without devices, calls with devices, and the import.

Prints one table of ratios, measured in one process; for comparison it includes an alternative that
ditorch does not use: a TorchFunctionMode that is always on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["DITORCH_QUIET"] = "1"

import torch
from rich.console import Console
from rich.table import Table
from torch.overrides import TorchFunctionMode

import ditorch

ROUNDS, REPEATS, CALLS = 8, 15, 500
OPERATION_AIM, DEVICE_AIM_US, IMPORT_AIM = 1.02, 0.35, 0.15
Rows = dict[str, Callable[[], object]]


class AlwaysOn(TorchFunctionMode):
    """The necessary work of a permanent mode: check every argument of every call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(kwargs.get("device"), str) and kwargs["device"].startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def not_about_devices() -> Rows:
    """Return operations and attributes whose cost must not change."""
    a, b = torch.ones(4), torch.ones(4)
    layer, batch = torch.nn.Linear(4, 4), torch.ones(2, 4)
    return {
        "a.add_(b)": lambda: a.add_(b),
        "a + b": lambda: a + b,
        "a.shape": lambda: a.shape,
        "a.device": lambda: a.device,
        "Linear(x)": lambda: layer(batch),
    }


def about_devices() -> Rows:
    """Return calls that name or query a device; here the CPU, which both sides support."""
    a, cpu = torch.ones(4), torch.device("cpu")
    return {
        'torch.empty(1, device="cpu")': lambda: torch.empty(1, device="cpu"),
        'a.to("cpu")': lambda: a.to("cpu"),
        'torch.device("cpu")': lambda: torch.device("cpu"),
        "device.type": lambda: cpu.type,
        "a.is_cuda": lambda: a.is_cuda,
    }


@contextmanager
def plain() -> Iterator[None]:
    """Use torch unchanged."""
    ditorch.undo()
    yield


@contextmanager
def active() -> Iterator[None]:
    """Use ditorch on the reference device."""
    ditorch.activate("reference")
    yield
    ditorch.undo()


@contextmanager
def always_on() -> Iterator[None]:
    """Use the permanent mode."""
    with AlwaysOn():
        yield


WAYS = {"plain": plain, "ditorch": active, "mode": always_on}


def least(function: Callable[[], object]) -> float:
    """Measure microseconds of one call, the least of many repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best * 1e6


def measure(rows: Rows) -> dict[str, dict[str, float]]:
    """Measure least times by row and way; the ways alternate, so that all see the same machine."""
    found = {name: dict.fromkeys(WAYS, float("inf")) for name in rows}
    for _ in range(ROUNDS):
        for way, enter in WAYS.items():
            with enter():
                for name, function in rows.items():
                    found[name][way] = min(found[name][way], least(function))
    return found


def seconds_to(statement: str, times: int = 5) -> float:
    """Measure the least seconds of new interpreters."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Measure, print the table, and write it as JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ditorch.undo()
    table = Table(title=f"ditorch against plain torch {torch.__version__} (CPU tensors, 1 thread)")
    for column in ("what", "plain", "ditorch", "ratio", "always-on mode", "ratio", "aim", "ok"):
        table.add_column(column, justify="left" if column == "what" else "right")
    numbers: dict[str, Any] = {}
    with torch.no_grad():
        for rows, is_device in ((not_about_devices(), False), (about_devices(), True)):
            for name, us in measure(rows).items():
                ratio, more = us["ditorch"] / us["plain"], us["ditorch"] - us["plain"]
                ok = more <= DEVICE_AIM_US if is_device else ratio <= OPERATION_AIM
                aim = f"+{DEVICE_AIM_US} us" if is_device else str(OPERATION_AIM)
                numbers[name] = us
                mode = f"{us['mode'] / us['plain']:.2f}"
                cells = [f"{us[way]:.3f} us" for way in ("plain", "ditorch")]
                table.add_row(
                    name, *cells, f"{ratio:.2f}", f"{us['mode']:.3f} us", mode, aim, _word(ok)
                )
    before = seconds_to("import torch, torch_dipu")
    after = seconds_to("import torch, torch_dipu, ditorch")
    numbers["import"] = {"plain": before, "ditorch": after}
    more = after - before
    cells = [f"{before:.2f} s", f"{after:.2f} s", f"+{more:.2f} s", "", ""]
    table.add_row("import", *cells, f"+{IMPORT_AIM} s", _word(more <= IMPORT_AIM))
    Console(width=max(Console().width, 110)).print(table)
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2))


def _word(ok: bool) -> str:
    return "yes" if ok else "no"


if __name__ == "__main__":
    main()
