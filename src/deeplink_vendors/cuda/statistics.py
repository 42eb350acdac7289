"""Statistics of tensors for op_tools: one kernel for all the pieces that it is given.

The kernel is compiled on first use, by the compiler that comes with torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

THREADS = 256  # as in the source
NUMBERS = 8  # of each piece


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduces pieces of memory in the current stream; what it returns waits for the results.

    See op_tools/statistics_device.py for the table and the results. RuntimeError: not now.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured")
    rows = table.shape[0]
    launch = _launcher(device.index)
    pinned = torch.empty(table.shape, dtype=torch.int64, pin_memory=True).copy_(table)
    given = pinned.to(device, non_blocking=True)
    made = torch.empty((rows, NUMBERS), dtype=torch.int64, device=device)
    launch(rows, given, made)
    host = torch.empty(made.shape, dtype=torch.int64, pin_memory=True)
    host.copy_(made, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def read() -> Tensor:
        done.synchronize()
        return host

    return read


@cache
def _launcher(index: int) -> Callable[[int, Tensor, Tensor], None]:
    """What starts the kernel on the current device, which a module of code belongs to."""
    source = Path(__file__).with_suffix(".cu").read_text()
    kernel: Any = torch.cuda._compile_kernel(source, "reduce_pieces")
    driver = ctypes.CDLL("libcuda.so.1")  # torch's own way looks it up for each launch

    def launch(rows: int, table: Tensor, results: Tensor) -> None:
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (table, results)]
        given = (ctypes.c_void_p * 2)(*(ctypes.addressof(pointer) for pointer in pointers))
        stream = ctypes.c_void_p(torch.cuda.current_stream(index).cuda_stream)
        failed = driver.cuLaunchKernel(
            kernel.func, rows, 1, 1, THREADS, 1, 1, 0, stream, given, None
        )
        if failed:
            raise RuntimeError(f"cuLaunchKernel: error {failed}")

    return launch
