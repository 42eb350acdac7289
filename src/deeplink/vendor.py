# SPDX-License-Identifier: Apache-2.0
"""Vendors: the record that describes one, finding the installed ones, choosing one.

A vendor comes in by an entry point of the group `deeplink.vendors`, in the tree or outside it.
"""

import difflib
import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from deeplink import settings
from deeplink.errors import NoVendorError, VendorBrokenError, VendorUnavailable

GROUP = "deeplink.vendors"
LAST_RESORT = "reference"
VARIABLE = settings.DEEPLINK_VENDOR.name

Status = Literal["available", "unavailable", "broken"]


@dataclass(frozen=True)
class Vendor:
    """One kind of device. All names but the first two are loaded only when they are needed.

    `is_available` returns False or raises VendorUnavailable with the reason; it is asked often
    and must not initialise the device.
    """

    name: str
    device: str  # the torch device type: "cuda", "npu", "dipu", …
    is_available: Callable[[], bool]
    _: KW_ONLY
    device_module: str = ""  # the module that brings the device to torch
    runtime: str = ""  # the module that fills in torch_dipu's Runtime
    kernels: str = ""  # the module of the kernels of diopi ops
    fused: str = ""  # the module of the kernels of fused ops
    graph: str = ""  # the module of the torch.compile back end
    statistics: str = ""  # the module that reduces many tensors at once, for op_tools
    precision: str = ""  # the module that tells how exact the program lets products be
    gaps: str = ""  # the file of what is missing, with reasons
    collective: str = ""  # the name of the torch.distributed back end
    build: str = ""  # a module with `state() -> dict[str, str]`, about its native build
    accelerator: bool = True  # whether it may be chosen without being asked for
    native_cuda: bool = False  # not NVIDIA's, and "cuda" to torch: goes before plain cuda
    visible_devices: str = ""  # the environment variable that says which devices are seen
    transfer_tools: tuple[str, ...] = ()  # the modules of its own tools that migrate CUDA code
    note: str = ""  # what a reader of a report should know about what ran here

    @property
    def label(self) -> str:
        """How reports call it: the note when there is one, else the name."""
        return self.note or self.name

    def gaps_file(self) -> Path | None:
        """Its gaps.toml, where it has one."""
        if not self.gaps:
            return None
        package, _, rest = self.gaps.partition("/")
        return Path(str(importlib.import_module(package).__file__)).parent / rest


@dataclass(frozen=True)
class Found:
    """One installed vendor and how it stands; `vendor` is None when its record did not load."""

    name: str
    vendor: Vendor | None
    status: Status
    reason: str
    distribution: str


@dataclass(frozen=True)
class Choice:
    """The chosen vendor, and why this one."""

    vendor: Vendor
    why: str


def discover() -> list[Found]:
    """Every installed vendor, by name. Never raises: a broken one is a row with its error."""
    points = importlib.metadata.entry_points(group=GROUP)
    return [_found(name, list(points.select(name=name))) for name in sorted(points.names)]


def find(name: str) -> Found | None:
    """One installed vendor; no other one's code runs, so no other one takes torch's device slot."""
    points = importlib.metadata.entry_points(group=GROUP, name=name)
    return _found(name, list(points)) if points else None


def module_for(device: str, part: str) -> str:
    """The module of this part (`statistics`, …) for a kind of device; "": no vendor has one."""
    rows = [row.vendor for row in discover() if row.vendor and row.status == "available"]
    return next((m for one in rows if one.device == device and (m := getattr(one, part))), "")


def load_device(vendor: Vendor, *, any_chip: bool = False) -> None:
    """Import the module that registers a vendor's torch device, with this vendor's chip behind it.

    Raise VendorUnavailable when the device of this process belongs to another vendor already.
    `any_chip` accepts this: for a process that only needs the device's name.
    """
    if not vendor.device_module:
        return
    with settings.asking_for(vendor.name):  # the device module reads it when it is imported
        module = importlib.import_module(vendor.device_module)
    owner = getattr(module, "VENDOR", vendor)
    if vendor.runtime and owner.name != vendor.name and not any_chip:
        raise VendorUnavailable(
            f"vendor {vendor.name!r} was asked for, but device {vendor.device!r} of this process "
            f"is vendor {owner.name!r} already.",
            f"set {VARIABLE}={vendor.name} before {vendor.device_module} is imported.",
        )


def choose(name: str | None = None) -> Choice:
    """The vendor asked for by name or DEEPLINK_VENDOR, else an accelerator, else reference."""
    if name:
        return Choice(_asked(name), f"asked for by name: {name}")
    wanted = settings.DEEPLINK_VENDOR.get()
    if wanted:
        return Choice(_asked(wanted), f"{VARIABLE}={wanted}")
    return _automatic(discover())


_active: Vendor | None = None


def active() -> Vendor | None:
    """The vendor whose device represents CUDA in this process; None without ditorch."""
    return _active


def set_active(vendor: Vendor | None) -> None:
    """Called by ditorch when it activates a vendor's device and when it undoes that."""
    global _active
    _active = vendor


@contextmanager
def using(name: str) -> Iterator[None]:
    """Choose a vendor for the block and the processes that it starts: what `--vendor NAME` means.

    Enter it before anything loads a device. "" changes nothing. Raises as `choose` does when the
    vendor is not installed or not available.
    """
    if name:
        _asked(name)
    with settings.asking_for(name):
        yield


def _asked(name: str) -> Vendor:
    asked = find(name)
    if asked and asked.vendor and asked.status == "available":
        return asked.vendor
    rows = discover()
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        names = [row.name for row in rows]
        raise NoVendorError(f"no vendor {name!r}; installed: {_list(names)}.", _meant(name, names))
    others = _list(r.name for r in rows if r.status == "available")
    if row.status == "unavailable":
        raise VendorUnavailable(
            f"vendor {name!r} is not available: {row.reason}; available: {others}.",
            f"`deeplink doctor` shows each vendor's state; {VARIABLE}=cpu runs on plain CPU.",
        )
    if row.status == "broken" or row.vendor is None:
        raise VendorBrokenError(
            f"vendor {name!r} (of {row.distribution}) is broken: {row.reason}; "
            f"available: {others}.",
            f"repair or uninstall {row.distribution}, or choose another by {VARIABLE}.",
        )
    return row.vendor


def _automatic(rows: list[Found]) -> Choice:
    usable = [row.vendor for row in rows if row.vendor and row.status == "available"]
    broken = [f"{row.name} ({row.reason})" for row in rows if row.status == "broken"]
    also = f"; broken: {_list(broken)}" if broken else ""
    # a chip that presents itself as cuda is available beside plain cuda, and says more
    for vendor in sorted(usable, key=lambda vendor: not vendor.native_cuda):
        if vendor.accelerator:
            return Choice(vendor, f"the first available accelerator{also}")
    for vendor in usable:
        if vendor.name == LAST_RESORT:
            return Choice(vendor, f"no accelerator is available{also}")
    last = next((f": {row.reason}" for row in rows if row.name == LAST_RESORT and row.reason), "")
    raise NoVendorError(
        f"no vendor to choose: no accelerator is available, and neither is {LAST_RESORT!r}{last}"
        f"{also}.",
        f"set {VARIABLE}=cpu to run on plain CPU; `deeplink doctor --all` shows all vendors."
        if any(vendor.name == "cpu" for vendor in usable)
        else "install this package (`pip install -e .`), so that its vendors are registered.",
    )


def _found(name: str, points: list[importlib.metadata.EntryPoint]) -> Found:
    distribution = ", ".join(sorted({_distribution(point) for point in points}))

    def broken(reason: str, vendor: Vendor | None = None) -> Found:
        return Found(name, vendor, "broken", reason, distribution)

    if len(points) > 1:
        return broken(f"{len(points)} entry points have this name, in: {distribution}")
    try:
        vendor = points[0].load()
    except Exception as error:  # another's module: whatever it raises is reported as its state
        return broken(_error(error))
    if not isinstance(vendor, Vendor):
        return broken(f"{points[0].value} is of type {type(vendor).__name__}, not Vendor")
    if vendor.name != name:
        return broken(f"its entry point is named {name!r}, its record {vendor.name!r}", vendor)
    try:
        available = vendor.is_available()
    except VendorUnavailable as error:
        reason = "; ".join(part.rstrip(".") for part in (error.message, error.hint) if part)
        return Found(name, vendor, "unavailable", reason, distribution)
    except Exception as error:  # another's code, as above
        return broken(_error(error), vendor)
    if not available:
        return Found(name, vendor, "unavailable", "it says no, without a reason", distribution)
    return Found(name, vendor, "available", "", distribution)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _meant(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"set {VARIABLE} to one of these, or install the vendor's package."


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
