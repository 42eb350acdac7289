# SPDX-License-Identifier: Apache-2.0
"""Whether a device captures a graph, during which its tensors cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


@cache
def captures(kind: str) -> Callable[[], bool]:
    """The function that reports whether a kind of device captures a graph on its current stream."""
    module = torch.get_device_module(kind)
    return getattr(module, "is_current_stream_capturing", lambda: False)


def is_capturing() -> bool:
    """Whether the accelerator captures a graph on its current stream."""
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.get_device_module(device.type).is_initialized():
        return False
    return captures(device.type)()
