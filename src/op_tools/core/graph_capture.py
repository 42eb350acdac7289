# SPDX-License-Identifier: Apache-2.0
"""Whether a device captures a graph: until the capture ends, no tensor of it can be read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


@cache
def captures(kind: str) -> Callable[[], bool]:
    """The function that reports whether a kind of device captures a graph on its current stream."""
    found: Callable[[], bool] | None = getattr(
        torch.get_device_module(kind), "is_current_stream_capturing", None
    )
    return found if found is not None else lambda: False


def is_capturing() -> bool:
    """Whether the accelerator captures a graph on its current stream."""
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.get_device_module(found.type).is_initialized():
        return False
    return captures(found.type)()
