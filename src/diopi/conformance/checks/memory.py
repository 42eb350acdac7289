# SPDX-License-Identifier: Apache-2.0
"""Memory in use, of the host and of a device, to find kernels that leak it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import torch

WARM_UP = 4  # calls that may fill caches
WINDOWS, CALLS = 4, 4  # number of windows, and calls in each; memory must grow in every window
LEAST = 16  # bytes per call: the smallest block of malloc

Used = Callable[[], int]


def kept(call: Callable[[], object], device: str) -> dict[str, int]:
    """Return the bytes that each call leaks, by kind of memory; empty when nothing grows."""
    gauges = dict(_gauges(device))
    suspects = _growing(call, gauges, lambda: None)
    if not suspects:
        return {}
    gc.freeze()  # existing objects need not be traversed each time
    try:
        again = {name: gauges[name] for name in suspects}
        return _growing(call, again, gc.collect)  # memory that only a cycle holds is no leak
    finally:
        gc.unfreeze()


def _growing(
    call: Callable[[], object], gauges: dict[str, Used], clean: Callable[[], object]
) -> dict[str, int]:
    for _ in range(WARM_UP):
        call()
    clean()
    marks = {name: [used()] for name, used in gauges.items()}
    for _ in range(WINDOWS):
        for _ in range(CALLS):
            call()
        clean()
        for name, used in gauges.items():
            marks[name].append(used())
    steps = {name: min(b - a for a, b in pairwise(row)) // CALLS for name, row in marks.items()}
    return {name: step for name, step in steps.items() if step >= LEAST}


def _gauges(device: str) -> Iterator[tuple[str, Used]]:
    kind = torch.device(device).type
    module = torch.get_device_module(kind) if kind != "cpu" else None
    if module is not None and hasattr(module, "memory_allocated"):

        def allocated() -> int:
            module.synchronize()  # running work holds memory
            return int(module.memory_allocated())

        yield kind, allocated
        if hasattr(module, "mem_get_info") and hasattr(module, "memory_reserved"):

            def outside() -> int:
                module.synchronize()
                free, total = module.mem_get_info()
                return int(total - free - module.memory_reserved())

            yield "chip", outside  # memory that kernels take from the chip without the allocator
    elif (in_use := _host()) is not None:
        yield "host", in_use


class _Malloc(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        .split()
    ]  # fmt: skip


@cache
def _host() -> Used | None:
    """Return malloc's bytes in use; None where the C library lacks the call (glibc before 2.33)."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _Malloc
    return lambda: (found := ask()).uordblks + found.hblkhd
