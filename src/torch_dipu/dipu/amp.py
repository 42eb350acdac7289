# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision under torch.cuda.amp's names."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast_mode.autocast):
    """torch.autocast for this device."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("dipu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for this device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("dipu", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="dipu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="dipu")
