# SPDX-License-Identifier: Apache-2.0
"""Memory: torch.accelerator's statistics of this device under torch.cuda's names."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.dipu.device import Device, index_of
from torch_dipu.dipu.memory_history import (
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
)
from torch_dipu.dipu.streams import stream as on_stream

__all__ = [
    "OutOfMemoryError",
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "host_view",
    "host_window",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_check_report",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

OutOfMemoryError = torch.OutOfMemoryError


def host_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor's memory as a host tensor, after all work of the device on it is done.

    It is for reading, while no kernel writes it. None where the chip's memory has no host window.
    """
    index = index_of(tensor.device)
    if tensor.layout != torch.strided or not _C.host_reachable(index):
        return None
    torch.accelerator.current_stream(index).synchronize()
    alias: torch.Tensor = _C.alias_host(tensor.detach())
    return alias


def host_window(device: Device = None) -> tuple[int, int, int] | None:
    """Return the first address of the device's memory, the host's address of that byte, and the
    size.

    Valid for the lifetime of the process; None where there is no window. The host must synchronize
    a stream before it reads what the stream has written.
    """
    window: tuple[int, int, int] = _C.host_window(index_of(device))
    return window if window[1] else None


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return every counter of the allocator, by torch.cuda's keys ("allocated_bytes.all.peak", …).

    In addition "cached.blocks", "cached.bytes" and "cached.largest": the memory that could be
    allocated without a call of the chip. Many blocks of which the largest is small indicate
    fragmentation.
    """
    index = index_of(device)
    cached = {f"cached.{key}": value for key, value in _C.cached_memory(index).items()}
    return {**torch.accelerator.memory_stats(index), **cached}


def _bytes(kind: str, what: str, device: Device) -> int:
    """Return one counter, without flattening them all."""
    stats = torch._C._accelerator_getDeviceStats(index_of(device))
    return int(stats[kind]["all"][what])


def memory_allocated(device: Device = None) -> int:
    """Return the bytes in use by tensors."""
    return _bytes("allocated_bytes", "current", device)


def max_memory_allocated(device: Device = None) -> int:
    """Return the maximum of bytes in use by tensors since the last reset."""
    return _bytes("allocated_bytes", "peak", device)


def memory_reserved(device: Device = None) -> int:
    """Return the bytes that the caching allocator holds."""
    return _bytes("reserved_bytes", "current", device)


def max_memory_reserved(device: Device = None) -> int:
    """Return the maximum of bytes that the caching allocator held since the last reset."""
    return _bytes("reserved_bytes", "peak", device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return free and total bytes of the device."""
    free, total = _C.memory_info(index_of(device))
    return int(free), int(total)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """The older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Reset the running totals to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limit the memory that this process reserves to a share of the device's memory."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a fraction from 0 to 1, found {fraction}")
    index = index_of(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))


def memory_snapshot() -> list[dict[str, Any]]:
    """Return every segment with its blocks, in the form of torch.cuda.memory_snapshot()."""
    return _C.memory_snapshot()


def caching_allocator_alloc(
    size: int, device: Device = None, stream: torch.Stream | None = None
) -> int:
    """Allocate `size` bytes for a kernel's own use, on a stream or the current one;
    return the address.
    """
    index = index_of(device)
    with on_stream(stream):
        return _C.allocate_raw(size, index)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory of caching_allocator_alloc."""
    _C.free_raw(mem_ptr)


def empty_cache() -> None:
    """Return cached, unused memory to the device."""
    torch.accelerator.empty_cache()


def memory_check_report() -> str:
    """Return the current report of DIPU_MEM_CHECK: blocks in use,
    by the place of their allocation.
    """
    return _C.memory_check_report()


def ipc_collect() -> None:
    """Free memory that other processes no longer use."""
    from torch_dipu import ipc

    ipc.collect()


METRICS = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "DIPU reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
    "allocation": "Allocations",
    "active": "Active allocs",
    "segment": "DIPU reserved segments",
    "inactive_split": "Non-releasable allocs",
}
POOLS = {"large_pool": "      from large pool", "small_pool": "      from small pool"}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Format the counters as a table, in the form of torch.cuda.memory_summary()."""
    index = index_of(device)
    stats = memory_stats(index)
    ooms, retries = stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0)
    title = f"PyTorch DIPU memory summary, device ID {index}"
    titles = ("Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed")
    lines = [
        "=" * 77,
        f"{title:^77}",
        "-" * 77,
        f"{f'DIPU OOMs: {ooms}':^38}|{f'allocation retries: {retries}':^38}",
        "=" * 77,
        _row(*(f"{text:^10}" for text in titles)),
    ]
    for key, name in METRICS.items():
        lines.append("-" * 77)
        rows = {"all": name, **({} if abbreviated else POOLS)}
        show = _size if key.endswith("bytes") else _count
        for pool, label in rows.items():
            kinds = ("current", "peak", "allocated", "freed")
            lines.append(_row(label, *(show(stats.get(f"{key}.{pool}.{k}", 0)) for k in kinds)))
    free = (_count(stats["cached.blocks"]), _size(stats["cached.bytes"]), "largest:")
    lines += ["-" * 77, _row("Cached, free blocks", *free, _size(stats["cached.largest"]))]
    return "\n".join(f"|{line}|" for line in [*lines, "=" * 77]) + "\n"


def _row(label: str, *cells: str) -> str:
    return " | ".join((f" {label:<23}", *(f"{cell:>10}" for cell in cells))) + " "


def _size(nbytes: int) -> str:
    for unit in ("B  ", "KiB", "MiB"):
        if nbytes < 768 * 1024:
            return f"{nbytes:d} {unit}"
        nbytes //= 1024
    return f"{nbytes:d} GiB"


def _count(number: int) -> str:
    return f"{number:d}    "
