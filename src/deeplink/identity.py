# SPDX-License-Identifier: Apache-2.0
"""The device, vendor and versions under which a record or a report was produced."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError
from deeplink.vendor import Vendor

CPU = "cpu"


@dataclass(frozen=True)
class Identity:
    """The device that a program ran on, its vendor, and the versions."""

    vendor: str  # vendor name; "" where no vendor is installed for the device
    label: str  # "reference device (CPU)"
    device: str  # torch device type: "dipu"
    torch: str
    python: str
    host: str

    def __str__(self) -> str:
        return f"{self.label} (device {self.device}), torch {self.torch}, python {self.python}"

    def same_device(self, other: Identity) -> bool:
        """Whether both records come from one kind of device, and so share its faults."""
        return (self.vendor, self.device) == (other.vendor, other.device)

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def current(device: str = "") -> Identity:
    """Identify the device in use, or the device of a torch device type; "cpu" is the CPU itself."""
    used = vendors.find(CPU) if device == CPU else None
    vendor = used.vendor if used is not None else _in_use()
    if vendor is None or (device not in ("", "cuda", vendor.device)):
        name, label, kind = "", device or CPU, device or CPU
    else:  # under ditorch the program sees the device as "cuda"
        name, label, kind = vendor.name, vendor.label, vendor.device
    return Identity(name, label, kind, _torch(), platform.python_version(), platform.node())


def chosen() -> Identity:
    """Identify the device of programs that are started from here, without loading it."""
    vendor = vendors.choose().vendor
    versions = _torch(), platform.python_version()
    return Identity(vendor.name, vendor.label, vendor.device, *versions, platform.node())


def read(found: Mapping[str, Any]) -> Identity | None:
    """Read the identity from the header of a record; None for an older record without one."""
    names = tuple(Identity.__dataclass_fields__)
    if not all(isinstance(found.get(name), str) for name in names):
        return None
    return Identity(*(found[name] for name in names))


def _in_use() -> Vendor | None:
    if vendors.active() is not None:
        return vendors.active()
    try:
        chosen = vendors.choose().vendor
    except DeeplinkError:
        chosen = None
    if chosen is not None and (not chosen.device_module or chosen.device_module in sys.modules):
        return chosen
    cpu = vendors.find(CPU)
    return cpu.vendor if cpu is not None else None


def _torch() -> str:
    torch = sys.modules.get("torch")
    if torch is not None:
        return str(torch.__version__)
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"
