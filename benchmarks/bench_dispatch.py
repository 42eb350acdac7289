"""Cost of each way of running an operator of the device, on four floats: one table.

The rows of a vendor's kernels in Python are those of the reference vendor, every op by torch's CPU
on the device's own bytes; `trivial` is a kernel that returns an existing tensor. The C kernel is
compiled here. The debugging aids are off in the first row, and off again after use in the last two.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torch_dipu  # noqa: F401
from diopi import cabi, implementation
from torch_dipu import _C, c_kernels, routes

CALLS, REPEATS = 20, 500  # short turns: the least of them was not interrupted
AIMS = {"kernel in C": "1.3", "trivial kernel in Python": "+10 us"}
SOURCE = r"""
#define DIOPI_IMPLEMENTATION
#include <diopi.h>
static int64_t apart; /* from a device address to the host's of the same byte */
DIOPI_API void set_apart(int64_t bytes) { apart = bytes; }
diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      const diopiScalar_t* alpha) {
    void* to;
    const void *a, *b;
    int64_t numel;
    (void)ctx;
    diopiGetTensorData(out, &to);
    diopiGetTensorDataConst(input, &a);
    diopiGetTensorDataConst(other, &b);
    diopiGetTensorNumel(out, &numel);
    for (int64_t i = 0; i < numel; ++i) {
        float left = ((const float*)((const char*)a + apart))[i];
        float right = ((const float*)((const char*)b + apart))[i];
        ((float*)((char*)to + apart))[i] = left + (float)alpha->ival * right;
    }
    return diopiSuccess;
}
"""
ADDS = ["aten::add.Tensor", "aten::add.out", "aten::add_.Tensor"]
Calls = dict[str, Callable[[], object]]


def calls(device: str) -> Calls:
    """Return the calls that are timed."""
    a, b, out = (torch.ones(4, device=device) for _ in range(3))
    return {
        "a + b": lambda: a + b,
        "add(out=)": lambda: torch.add(a, b, out=out),
        "add_": lambda: a.add_(b),
    }


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Run the device on the kernels of the reference vendor."""
    module = importlib.import_module("deeplink_vendors.reference.kernels")
    routes.bind(implementation.of(module, "reference"))
    try:
        yield
    finally:
        routes.unbind()


@contextmanager
def trivial_kernels() -> Iterator[None]:
    """Use kernels that do nothing, so that only the cost of dispatch remains."""
    given = torch.ones(4, device="dipu")
    for name in ADDS:
        _C.set_routes(name, [_C.python_route("kernel", "trivial", lambda *_: given, 0)])
    try:
        yield
    finally:
        _C.clear_routes(ADDS)


@contextmanager
def c_kernel() -> Iterator[None]:
    """Use a kernel of add in C, compiled here, without Python."""
    with tempfile.TemporaryDirectory() as folder:
        unit, path = Path(folder, "add.c"), Path(folder, "libadd.so")
        unit.write_text(SOURCE)
        command = ["cc", "-std=c11", "-O2", "-fPIC", "-shared", f"-I{cabi.include()}", str(unit)]
        subprocess.run([*command, "-o", str(path)], check=True)
        library, handle = cabi.load(path, "bench"), ctypes.CDLL(str(path))
    probe = torch.zeros(1, device="dipu")
    apart = _C.alias_host(probe).data_ptr() - probe.data_ptr()
    handle.set_apart(ctypes.c_int64(apart))
    found = c_kernels.routes(library.kernels)
    for name in ADDS:
        _C.set_routes(name, [found[name]])
    try:
        yield
    finally:
        _C.clear_routes(ADDS)


@contextmanager
def switched() -> Iterator[None]:
    """Switch dump and comparison on and off again."""
    for level, compared in (("1", "add.*"), ("0", "")):
        os.environ["DIPU_DUMP_OP_ARGS"] = level
        os.environ["DIPU_AUTOCOMPARE_OPS_LIST"] = compared
    yield


@contextmanager
def checked() -> Iterator[None]:
    """Switch the memory check on for a few calls, and off again."""
    _C.start_memory_check(1, False)
    for call in calls("dipu").values():
        call()
    _C.start_memory_check(0, False)
    yield


@contextmanager
def forced() -> Iterator[None]:
    """Run on the CPU, on copies."""
    _C.set_forced(ADDS, 1)
    try:
        yield
    finally:
        _C.set_forced(ADDS, 0)


@contextmanager
def direct() -> Iterator[None]:
    """Run the host's kernel on the device's bytes, with all aids off."""
    yield


WAYS = {
    "direct (the default)": direct,
    "kernel in C": c_kernel,
    "trivial kernel in Python": trivial_kernels,
    "reference kernel in Python": reference_kernels,
    "forced to the CPU": forced,
    "direct, aids on and off": switched,
    "direct, memory check on and off": checked,
}


def measure() -> dict[str, dict[str, tuple[float, float]]]:
    """Measure microseconds on the CPU and on the device, the least of many alternating turns."""
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
    table.add_column("aim", justify="right")
    for way, row in measure().items():
        cells = [f"{dev - cpu:+.2f} ({dev / cpu:.2f})" for cpu, dev in row.values()]
        table.add_row(way, *cells, AIMS.get(way, ""))
    Console().print(table)


if __name__ == "__main__":
    main()
