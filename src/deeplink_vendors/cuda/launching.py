# SPDX-License-Identifier: Apache-2.0
"""Kernels that are compiled on first use, by the compiler that comes with torch, and cached.

From Python they read a table in the host's pinned memory and write their results there, so that
there is a launch and no copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink import settings

THREADS = 256  # as in the sources
ROOM = 1 << 18  # bytes that are kept for the next use

_no_tensors = (ctypes.c_int64 * 66)()  # the third argument: there is a table
_free: list[Tensor] = []  # append and pop are atomic: threads share it


class Launched:
    """The launch of a block of threads for each row of a table, in the current stream;
    asynchronous.

    Raises RuntimeError when a launch is not possible at the moment.
    """

    def __init__(
        self, source: Path, name: str, table: Tensor, found: int, device: torch.device
    ) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured")
        self._rows, self._found = table.shape[0], found
        self._given = table.numel()
        self._memory = _buffer(8 * (self._given + self._rows * found))
        self._done = torch.Event(device)
        self._memory[: self._given].copy_(table.view(-1))
        address = self._memory.data_ptr()
        launch = _launcher(source, name, device.index)
        launch(self._rows, address, address + 8 * self._given)
        self._done.record()

    def read(self) -> Tensor:
        """Synchronize, and return the kernel's results, int64, a row for each of the table."""
        self._done.synchronize()
        made = self._memory[self._given : self._given + self._rows * self._found]
        return made.view(self._rows, self._found).clone()

    def __del__(self) -> None:  # the memory is not reused before the kernel has ended
        if hasattr(self, "_done"):
            self._done.synchronize()
            if self._memory.nbytes == ROOM:
                _free.append(self._memory)


def _buffer(size: int) -> Tensor:
    if size <= ROOM:
        try:
            return _free.pop()
        except IndexError:
            size = ROOM
    return torch.empty(size // 8, dtype=torch.int64, pin_memory=True)


@cache
def _kernel(source: Path, name: str, index: int) -> Any:
    """Return the kernel on a device, to which a module of code belongs."""
    # private in torch 2.11 to 2.13, where torch.cuda._compile_kernel is these two calls
    from torch.cuda._utils import _cuda_load_module

    with torch.cuda.device(index):
        kernels: Any = _cuda_load_module(_binary(source, name), [name])
        return kernels[name].func


def _binary(source: Path, name: str) -> bytes:
    """Return the compiled kernel for the current device, from the cache if it is there."""
    from torch.cuda._utils import _nvrtc_compile

    text = source.read_text()
    what = torch.__version__, torch.cuda.get_device_capability(), name, text
    key = hashlib.sha256(repr(what).encode()).hexdigest()[:12]
    file = settings.DIPU_BUILD_DIR.get() / f"{source.stem}-{key}.cubin"
    with contextlib.suppress(OSError):
        return file.read_bytes()
    binary: bytes = _nvrtc_compile(text, name)[0]
    part = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a cache that cannot be written is not used
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(binary)
        part.replace(file)
    return binary


def addresses(source: Path, name: str, index: int) -> tuple[int, int, int, int]:
    """Return the addresses of the launcher, the kernel, its threads, and the query for capture."""
    driver = ctypes.CDLL("libcuda.so.1")
    launch, capturing = (
        ctypes.cast(function, ctypes.c_void_p).value or 0
        for function in (driver.cuLaunchKernel, driver.cuStreamIsCapturing)
    )
    return launch, _kernel(source, name, index).value, THREADS, capturing


@cache
def _launcher(source: Path, name: str, index: int) -> Callable[[int, int, int], None]:
    """Return a function that starts the kernel on the current device."""
    kernel = _kernel(source, name, index)
    # torch's own interface searches for it in each call
    start = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    stream_of = torch._C._cuda_getCurrentRawStream

    def launch(rows: int, table: int, results: int) -> None:
        pointers = (ctypes.c_void_p * 2)(table, results)
        first = ctypes.addressof(pointers)
        second = first + ctypes.sizeof(ctypes.c_void_p)
        given = (ctypes.c_void_p * 3)(first, second, ctypes.addressof(_no_tensors))
        stream = ctypes.c_void_p(stream_of(index))
        failed = start(kernel, rows, 1, 1, THREADS, 1, 1, 0, stream, given, None)
        if failed:
            raise RuntimeError(f"cuLaunchKernel: error {failed}")

    return launch
