"""Statistics of tensors for op_tools, as a device of its own would give them: by the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from op_tools.tensors.statistics_reference import sums_of

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduces pieces of memory in the current stream; what it returns gives the results.

    See op_tools/tensors/device_reduction.py for the table and the results.
    """
    window = torch.get_device_module(device).host_window(device)
    if window is None:
        raise RuntimeError("the host does not see this device's memory")
    torch.accelerator.current_stream(device).synchronize()
    made = [_reduced(window[1] + row[0] - window[0], *row[1:]) for row in table.tolist()]
    return lambda: torch.tensor(made, dtype=torch.int64).view(-1, 8)


def _reduced(address: int, size: int, kind: int) -> list[int]:
    data = bytes((ctypes.c_char * size).from_address(address))
    sums = sums_of(data)
    if kind >= 16:  # the hash alone
        return [*sums, 0, 0, 0, 0, 0, 0]
    values = torch.frombuffer(bytearray(data), dtype=DTYPES[kind])
    wide = values.to(torch.float64)
    kept = wide[wide.isfinite()]
    bounds = [0, 0]
    if kept.numel():
        whole = not values.is_floating_point()
        low, high = (values if whole else kept).aminmax()
        bounds = [int(low), int(high)] if whole else [_bits(float(low)), _bits(float(high))]
    totals = [_bits(float(kept.sum())), _bits(float(kept.square().sum()))]
    return [*sums, *bounds, *totals, kept.numel(), int(wide.isnan().sum())]


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float64).view(torch.int64))
