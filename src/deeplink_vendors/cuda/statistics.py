# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors for op_tools: one kernel for all the pieces that it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from deeplink_vendors.cuda.launching import Launched, addresses
from op_tools.tensors.statistics_reference import FIELDS

SOURCE = Path(__file__).with_suffix(".cu")


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduces pieces of memory in the current stream; what it returns waits for the results.

    See op_tools/tensors/device_reduction.py for the table and the results. RuntimeError: not now.
    """
    return Launched(SOURCE, "reduce_pieces", table, FIELDS, device).read


def launcher(index: int) -> tuple[int, int, int, int, bool]:
    """What op_tools needs to launch the kernel natively; see op_tools.tensors.device_reduction."""
    return *addresses(SOURCE, "reduce_pieces", index), True
