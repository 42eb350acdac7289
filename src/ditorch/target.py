# SPDX-License-Identifier: Apache-2.0
"""Where CUDA code runs instead: the chosen vendor's device."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from deeplink.vendor import Vendor


@dataclass(frozen=True)
class Target:
    """A vendor and its device as torch knows it; `module` has the names of torch.cuda it has."""

    vendor: Vendor
    device: str  # "dipu", "npu", "cpu"
    module: ModuleType

    @property
    def has_index(self) -> bool:
        """Whether "cuda:1" has a counterpart with an index; on plain CPU it has not."""
        return self.device != "cpu"

    def at(self, index: int | None) -> torch.device:
        """The device of that index; on plain CPU there is but one."""
        if index is None or not self.has_index:
            return torch.device(self.device)
        return torch.device(self.device, index)

    def name(self, device: Any) -> Any:
        """The target's name for a CUDA device name or object; anything else as it is."""
        if isinstance(device, torch.device) and device.type == "cuda":
            return self.at(device.index)
        if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
            return self.device + (device[4:] if self.has_index else "")
        return device


def load(vendor: Vendor) -> Target:
    """Brings the vendor's device to torch."""
    if vendor.device_module:
        importlib.import_module(vendor.device_module)
    return Target(vendor, vendor.device, torch.get_device_module(vendor.device))
