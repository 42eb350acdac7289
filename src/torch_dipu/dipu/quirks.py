# SPDX-License-Identifier: Apache-2.0
"""Faults that a vendor's device can inject on demand."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch_dipu
from deeplink.errors import DeeplinkError

__all__ = ["quirk", "quirks"]


def _module() -> ModuleType:
    vendor = torch_dipu.VENDOR
    offer = getattr(importlib.import_module(vendor.runtime), "quirks", None)
    if offer is None:
        raise DeeplinkError(
            f"vendor {vendor.name!r} has no quirks.", hint="the reference vendor has."
        )
    module: ModuleType = offer()
    return module


def quirk(name: str, ops: str | None = None, **parameters: Any) -> AbstractContextManager[None]:
    """Inject a fault inside the block: `with torch.dipu.quirk("nan", "mm", call=3): ...`."""
    context: AbstractContextManager[None] = _module().quirk(name, ops, **parameters)
    return context


def quirks() -> dict[str, str]:
    """Return every fault that the vendor offers, with its description."""
    listing: dict[str, str] = _module().quirks()
    return listing
