"""Statistics of tensors for op_tools: one kernel for all the pieces that it is given.

The kernel is compiled on first use, by the compiler that comes with torch. It reads the table from
the host's pinned memory and writes its results there: a launch, and no copy.
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
GIVEN, FOUND = 3, 8  # numbers of each piece
ROOM = 2048  # pieces for which memory is kept

_free: list[Tensor] = []  # append and pop are atomic: threads share it


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduces pieces of memory in the current stream; what it returns waits for the results.

    See op_tools/reducing.py for the table and the results. RuntimeError: not now.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured")
    rows = table.shape[0]
    try:
        memory = _free.pop() if rows <= ROOM else _pinned(rows)
    except IndexError:
        memory = _pinned(ROOM)
    memory[: rows * GIVEN].copy_(table.view(-1))
    _launcher(device.index)(rows, memory.data_ptr(), memory.data_ptr() + 8 * rows * GIVEN)
    return _Results(memory, rows, device).read


class _Results:
    """The memory that the kernel writes: not used again before it is done."""

    def __init__(self, memory: Tensor, rows: int, device: torch.device) -> None:
        self._memory, self._rows = memory, rows
        self._done = torch.Event(device)
        self._done.record()

    def read(self) -> Tensor:
        self._done.synchronize()
        made = self._memory[self._rows * GIVEN : self._rows * (GIVEN + FOUND)]
        return made.view(self._rows, FOUND).clone()

    def __del__(self) -> None:
        self._done.synchronize()
        if self._rows <= ROOM:
            _free.append(self._memory)


def _pinned(rows: int) -> Tensor:
    return torch.empty(rows * (GIVEN + FOUND), dtype=torch.int64, pin_memory=True)


@cache
def _kernel(index: int) -> Any:
    """The kernel on a device; of the current one, which a module of code belongs to."""
    source = Path(__file__).with_suffix(".cu").read_text()
    with torch.cuda.device(index):
        return torch.cuda._compile_kernel(source, "reduce_pieces").func


def launcher(index: int) -> tuple[int, int, int, int]:
    """What the native part of op_tools needs to start it; see op_tools/reducing.py."""
    driver = ctypes.CDLL("libcuda.so.1")
    launch, capturing = (
        ctypes.cast(function, ctypes.c_void_p).value or 0
        for function in (driver.cuLaunchKernel, driver.cuStreamIsCapturing)
    )
    return launch, _kernel(index).value, THREADS, capturing


@cache
def _launcher(index: int) -> Callable[[int, int, int], None]:
    """What starts the kernel on the current device."""
    kernel = _kernel(index)
    start = ctypes.CDLL("libcuda.so.1").cuLaunchKernel  # torch's own way looks it up each time
    stream_of = torch._C._cuda_getCurrentRawStream

    def launch(rows: int, table: int, results: int) -> None:
        pointers = (ctypes.c_void_p * 2)(table, results)
        first = ctypes.addressof(pointers)
        given = (ctypes.c_void_p * 2)(first, first + ctypes.sizeof(ctypes.c_void_p))
        stream = ctypes.c_void_p(stream_of(index))
        failed = start(kernel, rows, 1, 1, THREADS, 1, 1, 0, stream, given, None)
        if failed:
            raise RuntimeError(f"cuLaunchKernel: error {failed}")

    return launch
