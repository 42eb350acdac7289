# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors for op_tools: one kernel for all pieces of a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from deeplink_vendors.cuda.launching import Launched, addresses
from op_tools.tensors.statistics_reference import FIELDS

SOURCE = Path(__file__).with_suffix(".cu")


def start(table: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Reduce pieces of memory in the current stream; the returned function waits for the results.

    See op_tools/tensors/device_reduction.py for the table and the results. Raises RuntimeError when
    a launch is not possible at the moment.
    """
    return Launched(SOURCE, "reduce_pieces", table, FIELDS, device).read


def launcher(index: int) -> tuple[int, int, int, int, bool]:
    """Return what op_tools needs to launch the kernel natively; see
    op_tools.tensors.device_reduction.
    """
    return *addresses(SOURCE, "reduce_pieces", index), True
