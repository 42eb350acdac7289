# SPDX-License-Identifier: Apache-2.0
"""Memory in use, of the host and of a device: what a kernel keeps from call to call shows there."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import torch

WARM_UP = 4  # calls that may fill caches
WINDOWS, CALLS = 4, 4  # so many times so many calls: each of them has to grow
LEAST = 16  # bytes per call: the smallest block of malloc

Used = Callable[[], int]


def kept(call: Callable[[], object], device: str) -> dict[str, int]:
    """The bytes that each call keeps, by whose memory it is; nothing where nothing grows."""
    gauges = dict(_gauges(device))
    suspects = _growing(call, gauges, lambda: None)
    if not suspects:
        return {}
    gc.freeze()  # what is there already need not be looked through each time
    try:
        again = {name: gauges[name] for name in suspects}
        return _growing(call, again, gc.collect)  # what a cycle kept is no leak
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
            module.synchronize()  # what runs holds its memory
            return int(module.memory_allocated())

        yield kind, allocated
        if hasattr(module, "mem_get_info") and hasattr(module, "memory_reserved"):

            def outside() -> int:
                module.synchronize()
                free, total = module.mem_get_info()
                return int(total - free - module.memory_reserved())

            yield "chip", outside  # what kernels take from the chip without the allocator
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
    """The bytes in use of malloc; None where the C library does not tell (glibc before 2.33)."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _Malloc
    return lambda: (found := ask()).uordblks + found.hblkhd
