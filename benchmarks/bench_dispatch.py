"""What each way of running an operator of the device costs, on four floats: one table.

The rows of a vendor's kernels in Python are those of the reference vendor, every op by torch's CPU
on the device's own bytes; `trivial` is a kernel that returns a tensor which it has. With the
environment's aids off nothing of them is on the path: the first row is that path.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table

import torch_dipu  # noqa: F401
from diopi import implementation
from torch_dipu import _C, routes

CALLS, REPEATS = 20, 500  # short turns: the least of them was not interrupted
ADDS = ["aten::add.Tensor", "aten::add.out", "aten::add_.Tensor"]
Calls = dict[str, Callable[[], object]]


def calls(device: str) -> Calls:
    """The calls that are timed."""
    a, b, out = (torch.ones(4, device=device) for _ in range(3))
    return {
        "a + b": lambda: a + b,
        "add(out=)": lambda: torch.add(a, b, out=out),
        "add_": lambda: a.add_(b),
    }


@contextmanager
def reference_kernels() -> Iterator[None]:
    """The device on the kernels of the reference vendor."""
    module = importlib.import_module("deeplink_vendors.reference.kernels")
    routes.bind(implementation.of(module, "reference"))
    try:
        yield
    finally:
        routes.unbind()


@contextmanager
def trivial_kernels() -> Iterator[None]:
    """Kernels that do nothing: what is left is the way to them."""
    given = torch.ones(4, device="dipu")
    for name in ADDS:
        _C.set_routes(name, [_C.python_route("kernel", "trivial", lambda *_: given, 0)])
    try:
        yield
    finally:
        _C.clear_routes(ADDS)


@contextmanager
def forced() -> Iterator[None]:
    """The CPU, on copies."""
    _C.set_forced(ADDS, 1)
    try:
        yield
    finally:
        _C.set_forced(ADDS, 0)


@contextmanager
def direct() -> Iterator[None]:
    """The host's kernel on the device's bytes, nothing else on."""
    yield


WAYS = {
    "direct (the default)": direct,
    "trivial kernel in Python": trivial_kernels,
    "reference kernel in Python": reference_kernels,
    "forced to the CPU": forced,
}


def measure() -> dict[str, dict[str, tuple[float, float]]]:
    """Microseconds on the CPU and on the device, the least of many turns, taken in turns."""
    cpu, device = calls("cpu"), calls("dipu")
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for way, switch in WAYS.items():
        with switch():
            found[way] = {what: _both(cpu[what], device[what]) for what in cpu}
    return found


def _both(cpu: Callable[[], object], device: Callable[[], object]) -> tuple[float, float]:
    best = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        for at, call in enumerate((cpu, device)):
            best[at] = min(best[at], _microseconds(call))
    return best[0], best[1]


def _microseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="One operator call, microseconds over plain CPU (ratio)")
    table.add_column("way")
    for what in calls("cpu"):
        table.add_column(what, justify="right")
    for way, row in measure().items():
        cells = [f"+{dev - cpu:.2f} ({dev / cpu:.2f})" for cpu, dev in row.values()]
        table.add_row(way, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
