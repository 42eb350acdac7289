"""What a tiny op costs by each way that it can take: host kernel, C kernel, Python kernel, fallback.

All on the reference device, in one process, taking turns with plain CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import run

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from diopi import cabi
from diopi.op import get
from torch_dipu import _C, c_kernels, names

CALLS, TURNS = 500, 60
AIMS = {"C kernel": 1.3}  # of the CPU's time
PYTHON_AIM = 10.0  # microseconds over the CPU

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
OVERLOADS = ("aten::add.Tensor", "aten::add.out", "aten::add_.Tensor")


@dataclass(frozen=True)
class Row:
    """Microseconds per call of one op by one way, and the CPU's."""

    what: str
    way: str
    cpu: float
    device: float

    @property
    def ratio(self) -> float:
        return self.device / self.cpu

    @property
    def aim(self) -> str:
        if self.way == "Python kernel":
            return f"+{PYTHON_AIM:g} us"
        return f"{AIMS[self.way]:g}" if self.way in AIMS else ""

    @property
    def ok(self) -> bool | None:
        if self.way == "Python kernel":
            return self.device - self.cpu <= PYTHON_AIM
        return None if self.way not in AIMS else self.ratio <= AIMS[self.way]


def c_routes(folder: Path) -> dict[str, _C.Route]:
    """The routes of a C kernel of add, compiled here."""
    source, path = folder / "add.c", folder / "libadd.so"
    source.write_text(SOURCE)
    command = ["cc", "-std=c11", "-O2", "-fPIC", "-shared", f"-I{cabi.include()}", str(source)]
    run([*command, "-o", str(path)], check=True)
    library = cabi.load(path, "bench")
    probe = torch.zeros(1, device="dipu")
    apart = _C.alias_host(probe).data_ptr() - probe.data_ptr()
    ctypes.CDLL(str(path)).set_apart(ctypes.c_int64(apart))
    return c_kernels.routes(library.kernels)


def python_routes() -> dict[str, _C.Route]:
    """The routes of a kernel in Python that does nothing: what the way itself costs."""
    result = torch.ones(4, device="dipu")

    def functional(a: Tensor, b: Tensor, alpha: float) -> Tensor:
        return result

    def written(*arguments: object) -> None:
        return None

    kernels: dict[str, Callable[..., object]] = dict.fromkeys(OVERLOADS, written)
    kernels["aten::add.Tensor"] = functional
    return {name: _C.python_route("kernel", "add", kernel, 0) for name, kernel in kernels.items()}


def tiny_ops(device: str) -> dict[str, Callable[[], object]]:
    a, b, out = (torch.ones(4, device=device) for _ in range(3))
    return {
        "a + b": lambda: a + b,
        "add(out=)": lambda: torch.add(a, b, out=out),
        "add_": lambda: a.add_(b),
    }


def bench(folder: Path) -> list[Row]:
    """The least of many turns for each op and way, CPU and all ways taking turns."""
    assert get("add").aten[0] == OVERLOADS[0]
    by_c, by_python = c_routes(folder), python_routes()

    def choose(routes: dict[str, _C.Route] | None, forced: bool = False) -> Callable[[], None]:
        def now() -> None:
            for name in OVERLOADS:
                _C.set_routes(name, [routes[name]] if routes else [])
            _C.set_forced(list(OVERLOADS), names.ALWAYS if forced else 0)

        return now

    ways = {
        "host kernel": choose(None),
        "C kernel": choose(by_c),
        "Python kernel": choose(by_python),
        "forced fallback": choose(None, forced=True),
        "host kernel, aids switched on and off": choose(None),
    }
    cpu, device = tiny_ops("cpu"), tiny_ops("dipu")
    best: dict[tuple[str, str], float] = {}
    for _ in range(TURNS):
        for way, now in ways.items():
            now()
            if way.endswith("on and off"):
                _switch_aids()
            for what in cpu:
                _keep_least(best, (what, way), device[what])
                _keep_least(best, (what, "cpu"), cpu[what])
    choose(None)()
    return [Row(what, way, best[what, "cpu"], best[what, way]) for what in cpu for way in ways]


def _switch_aids() -> None:
    """Dump and the guard behind results, on and off again."""
    for level in ("1", "0"):
        os.environ["DIPU_DUMP_OP_ARGS"] = level
    _C.guard_kernels(True)
    _C.guard_kernels(False)


def _keep_least(
    best: dict[tuple[str, str], float], key: tuple[str, str], call: Callable[[], object]
) -> None:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    taken = (time.perf_counter() - started) / CALLS * 1e6
    best[key] = min(best.get(key, taken), taken)


def show(console: Console, rows: list[Row]) -> None:
    table = Table(title=f"A tiny op by each way, torch {torch.__version__}, 1 thread")
    for column in ("op", "way", "CPU", "device", "ratio", "aim", "ok"):
        table.add_column(column, justify="left" if column in ("op", "way") else "right")
    for row in rows:
        verdict = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.ok]
        figures = (f"{row.cpu:.2f} us", f"{row.device:.2f} us", f"{row.ratio:.2f}")
        table.add_row(row.what, row.way, *figures, row.aim, verdict)
    console.print(table)


def main() -> int:
    """Measures and shows; never fails for being slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        rows = bench(Path(folder))
    show(Console(), rows)
    if options.json:
        entries = [asdict(row) | {"ratio": row.ratio, "aim": row.aim} for row in rows]
        options.json.write_text(json.dumps(entries, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
