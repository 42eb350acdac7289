# SPDX-License-Identifier: Apache-2.0
"""The target of CUDA code: the chosen vendor's device."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from deeplink.vendor import Vendor


@dataclass(frozen=True)
class Target:
    """A vendor and its torch device; `module` implements the names of torch.cuda that it has."""

    vendor: Vendor
    device: str  # "dipu", "npu", "cpu"
    module: ModuleType

    @property
    def has_index(self) -> bool:
        """Whether "cuda:1" has a counterpart with an index; False on plain CPU."""
        return self.device != "cpu"

    def at(self, index: int | None) -> torch.device:
        """Return the device of an index; plain CPU has only one."""
        if index is None or not self.has_index:
            return torch.device(self.device)
        return torch.device(self.device, index)

    def name(self, device: Any) -> Any:
        """Translate a CUDA device name or object to the target's;
        return anything else unchanged.
        """
        if isinstance(device, torch.device) and device.type == "cuda":
            return self.at(device.index)
        if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
            return self.device + (device[4:] if self.has_index else "")
        return device


def load(vendor: Vendor) -> Target:
    """Register the vendor's device with torch."""
    if vendor.device_module:
        importlib.import_module(vendor.device_module)
    return Target(vendor, vendor.device, torch.get_device_module(vendor.device))
