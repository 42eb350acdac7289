# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors for op_tools, computed on the host in place of a device's own kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from op_tools.tensors.statistics_reference import FIELDS, fields_of, sums_of

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduce pieces of memory in the current stream; the returned function gives the results.

    See op_tools/tensors/device_reduction.py for the table and the results.
    """
    window = torch.get_device_module(device).host_window(device)
    if window is None:
        raise RuntimeError("the host cannot access this device's memory")
    torch.accelerator.current_stream(device).synchronize()
    made = [_reduced(window[1] + row[0] - window[0], *row[1:]) for row in table.tolist()]
    return lambda: torch.tensor(made, dtype=torch.int64).view(-1, FIELDS)


def _reduced(address: int, size: int, kind: int) -> list[int]:
    data = bytes((ctypes.c_char * size).from_address(address))
    if kind & 16:  # the hash alone
        return [*sums_of(data), *[0] * (FIELDS - 2)]
    values = torch.frombuffer(bytearray(data), dtype=DTYPES[kind % 16])
    return [*sums_of(data), *map(_bits, fields_of(values))]


def _bits(field: float) -> int:
    if isinstance(field, int):
        return field
    return int(torch.tensor(field, dtype=torch.float64).view(torch.int64))
