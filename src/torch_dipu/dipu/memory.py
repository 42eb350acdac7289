"""Memory: torch.accelerator's statistics of this device under torch.cuda's names."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.dipu.device import Device, index_of

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "host_view",
    "host_window",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
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
    """The tensor's memory as the host sees it, once the device is done with it; to be read only,
    while nothing writes it. None where the chip's memory has no window for the host.
    """
    index = index_of(tensor.device)
    if tensor.layout != torch.strided or not _C.host_reachable(index):
        return None
    torch.accelerator.current_stream(index).synchronize()
    alias: torch.Tensor = _C.alias_host(tensor.detach())
    return alias


def host_window(device: Device = None) -> tuple[int, int, int] | None:
    """The first address of the device's memory, the host's address of the same byte, and how many
    bytes follow, for as long as the process lives; None where there is no window. The host reads
    what a stream has written after it has waited for the stream.
    """
    window: tuple[int, int, int] = _C.host_window(index_of(device))
    return window if window[1] else None


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Every counter of the allocator, by torch.cuda's keys ("allocated_bytes.all.peak", …)."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def _bytes(kind: str, what: str, device: Device) -> int:
    """One counter, without flattening them all."""
    stats = torch._C._accelerator_getDeviceStats(index_of(device))
    return int(stats[kind]["all"][what])


def memory_allocated(device: Device = None) -> int:
    """Bytes in use by tensors."""
    return _bytes("allocated_bytes", "current", device)


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes ever in use by tensors since the last reset."""
    return _bytes("allocated_bytes", "peak", device)


def memory_reserved(device: Device = None) -> int:
    """Bytes that the caching allocator holds."""
    return _bytes("reserved_bytes", "current", device)


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the caching allocator ever held since the last reset."""
    return _bytes("reserved_bytes", "peak", device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    free, total = _C.memory_info(index_of(device))
    return int(free), int(total)


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peaks start again from what is in use now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """The older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """The running totals start again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """From now on this process reserves at most that share of the device's memory."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a fraction from 0 to 1, found {fraction}")
    index = index_of(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))


def memory_snapshot() -> list[dict[str, Any]]:
    """Every segment with its blocks, in torch.cuda.memory_snapshot()'s form."""
    return _C.memory_snapshot()


def empty_cache() -> None:
    """Gives what is cached and unused back to the device."""
    torch.accelerator.empty_cache()


def ipc_collect() -> None:
    """Lets go of memory that other processes have finished with."""
    from torch_dipu import sharing

    sharing.collect()


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The counters as a table to read."""
    rows = ["allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes"]
    rows += [] if abbreviated else ["requested_bytes", "allocation", "active", "segment"]
    stats = memory_stats(device)
    lines = [f"DIPU memory summary, device {index_of(device)}"]
    lines.append(f"{'':22}{'current':>16}{'peak':>16}{'allocated':>18}{'freed':>18}")
    for row in rows:
        cells = [stats.get(f"{row}.all.{k}", 0) for k in ("current", "peak", "allocated", "freed")]
        lines.append(f"{row:22}{cells[0]:>16,}{cells[1]:>16,}{cells[2]:>18,}{cells[3]:>18,}")
    lines.append(f"out-of-memory errors: {stats.get('num_ooms', 0)}")
    return "\n".join(lines)
