# SPDX-License-Identifier: Apache-2.0
"""Vendors: the record that describes one, discovery of the installed ones, the choice of one.

A vendor registers itself by an entry point of the group `deeplink.vendors`, in the tree or outside.
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
from deeplink.i18n import _

GROUP = "deeplink.vendors"
LAST_RESORT = "reference"
VARIABLE = settings.DEEPLINK_VENDOR.name

Status = Literal["available", "unavailable", "broken"]


@dataclass(frozen=True)
class Vendor:
    """One kind of device. Modules named here are imported only on use.

    `is_available` returns False or raises VendorUnavailable with the reason. It is called often, so
    it
    must be fast and must not initialise the device.
    """

    name: str
    device: str  # torch device type: "cuda", "npu", "dipu", …
    is_available: Callable[[], bool]
    _: KW_ONLY
    device_module: str = ""  # module that registers the device with torch
    runtime: str = ""  # module whose `runtime()` implements torch_dipu's Runtime
    kernels: str = ""  # module of the kernels of diopi ops
    fused: str = ""  # module of the kernels of fused ops
    graph: str = ""  # module of the torch.compile backend
    statistics: str = ""  # module that reduces many tensors at once, for op_tools
    precision: str = ""  # module that reports the precision that the program allows for products
    gaps: str = ""  # file of known gaps, with reasons
    collective: str = ""  # name of the torch.distributed backend
    build: str = ""  # module with `state() -> dict[str, str]`, about its native build
    accelerator: bool = True  # whether it may be chosen automatically
    native_cuda: bool = False  # not NVIDIA's, and "cuda" to torch: preferred to plain cuda
    visible_devices: str = ""  # environment variable that selects the visible devices
    transfer_tools: tuple[str, ...] = ()  # modules of the vendor's own tools that migrate CUDA code
    note: str = ""  # remark for reports about what computes here

    @property
    def label(self) -> str:
        """The name in reports: the note when there is one, else the name."""
        return self.note or self.name

    def gaps_file(self) -> Path | None:
        """Path of the vendor's gaps.toml; None if it has none."""
        if not self.gaps:
            return None
        package, _, rest = self.gaps.partition("/")
        return Path(str(importlib.import_module(package).__file__)).parent / rest


@dataclass(frozen=True)
class Found:
    """One installed vendor and its state; `vendor` is None when its record did not load."""

    name: str
    vendor: Vendor | None
    status: Status
    reason: str
    distribution: str


@dataclass(frozen=True)
class Choice:
    """The chosen vendor and the reason for the choice."""

    vendor: Vendor
    why: str


def discover() -> list[Found]:
    """List every installed vendor by name. Never raises: a broken one is a row with its error."""
    points = importlib.metadata.entry_points(group=GROUP)
    return [_load_entry(name, list(points.select(name=name))) for name in sorted(points.names)]


def find(name: str) -> Found | None:
    """Find one installed vendor without running code of others,
    which might register their devices.
    """
    points = importlib.metadata.entry_points(group=GROUP, name=name)
    return _load_entry(name, list(points)) if points else None


def module_for(device: str, part: str) -> str:
    """Return the module of a part (`statistics`, …) for a kind of device;
    "" if no vendor has one.
    """
    rows = [row.vendor for row in discover() if row.vendor and row.status == "available"]
    return next((m for one in rows if one.device == device and (m := getattr(one, part))), "")


def load_device(vendor: Vendor, *, any_chip: bool = False) -> None:
    """Import the module that registers a vendor's torch device, with this vendor's chip behind it.

    Raise VendorUnavailable when the device of this process belongs to another vendor already.
    `any_chip` accepts this: for a process that only needs the device's name.
    """
    if not vendor.device_module:
        return
    with settings.selecting_vendor(vendor.name):  # the device module reads it when it is imported
        module = importlib.import_module(vendor.device_module)
    owner = getattr(module, "VENDOR", vendor)
    if vendor.runtime and owner.name != vendor.name and not any_chip:
        raise VendorUnavailable(
            _(
                "vendor {name!r} was requested, but device {device!r} of this process is vendor "
                "{other!r} already."
            ).format(name=vendor.name, device=vendor.device, other=owner.name),
            _("set {variable}={name} before {device_module} is imported.").format(
                variable=VARIABLE, name=vendor.name, device_module=vendor.device_module
            ),
        )


def choose(name: str | None = None) -> Choice:
    """Choose the vendor of this name or of DEEPLINK_VENDOR, else an accelerator, else reference."""
    if name:
        return Choice(_requested(name), _("requested by name: {name}").format(name=name))
    wanted = settings.DEEPLINK_VENDOR.get()
    if wanted:
        return Choice(_requested(wanted), f"{VARIABLE}={wanted}")
    return _automatic(discover())


_active: Vendor | None = None


def active() -> Vendor | None:
    """Return the vendor whose device represents CUDA in this process; None without ditorch."""
    return _active


def set_active(vendor: Vendor | None) -> None:
    """Record the active vendor; ditorch calls this when it activates a device
    and when it undoes that.
    """
    global _active
    _active = vendor


@contextmanager
def using(name: str) -> Iterator[None]:
    """Choose a vendor for the block and its child processes, as `--vendor NAME` does.

    Enter it before anything loads a device. "" changes nothing. Raises as `choose` does when the
    vendor is not installed or not available.
    """
    if name:
        _requested(name)
    with settings.selecting_vendor(name):
        yield


def _requested(name: str) -> Vendor:
    asked = find(name)
    if asked and asked.vendor and asked.status == "available":
        return asked.vendor
    rows = discover()
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        names = [row.name for row in rows]
        raise NoVendorError(
            _("no vendor {name!r}; installed: {names}.").format(name=name, names=_list(names)),
            _meant(name, rows),
        )
    others = _list(r.name for r in rows if r.status == "available")
    if row.status == "unavailable":
        raise VendorUnavailable(
            _("vendor {name!r} is not available: {reason}; available: {others}.").format(
                name=name, reason=row.reason, others=others
            ),
            _(
                "`deeplink doctor` shows each vendor's state; {variable}=cpu runs on plain CPU."
            ).format(variable=VARIABLE),
        )
    if row.status == "broken" or row.vendor is None:
        raise VendorBrokenError(
            _(
                "vendor {name!r} (of {distribution}) is broken: {reason}; available: {others}."
            ).format(name=name, distribution=row.distribution, reason=row.reason, others=others),
            _("repair or uninstall {distribution}, or choose another by {variable}.").format(
                distribution=row.distribution, variable=VARIABLE
            ),
        )
    return row.vendor


def _automatic(rows: list[Found]) -> Choice:
    usable = [row.vendor for row in rows if row.vendor and row.status == "available"]
    broken = [f"{row.name} ({row.reason})" for row in rows if row.status == "broken"]
    also = _("; broken: {names}").format(names=_list(broken)) if broken else ""
    # a chip that presents itself as cuda is available in addition to plain cuda, and more specific
    for vendor in sorted(usable, key=lambda vendor: not vendor.native_cuda):
        if vendor.accelerator:
            return Choice(vendor, _("the first available accelerator{also}").format(also=also))
    for vendor in usable:
        if vendor.name == LAST_RESORT:
            return Choice(vendor, _("no accelerator is available{also}").format(also=also))
    last = next((f": {row.reason}" for row in rows if row.name == LAST_RESORT and row.reason), "")
    raise NoVendorError(
        _(
            "no vendor to choose: no accelerator is available, and neither is "
            "{last_resort!r}{last}{also}."
        ).format(last_resort=LAST_RESORT, last=last, also=also),
        _(
            "set {variable}=cpu to run on plain CPU; `deeplink doctor --all` shows all vendors."
        ).format(variable=VARIABLE)
        if any(vendor.name == "cpu" for vendor in usable)
        else _("install this package (`pip install -e .`), so that its vendors are registered."),
    )


def _load_entry(name: str, points: list[importlib.metadata.EntryPoint]) -> Found:
    distribution = ", ".join(sorted({_distribution(point) for point in points}))

    def broken(reason: str, vendor: Vendor | None = None) -> Found:
        return Found(name, vendor, "broken", reason, distribution)

    if len(points) > 1:
        return broken(
            _("{count} entry points have this name, in: {distribution}").format(
                count=len(points), distribution=distribution
            )
        )
    try:
        vendor = points[0].load()
    # another package's module: whatever it raises is reported as its state
    except Exception as error:
        return broken(_error(error))
    if not isinstance(vendor, Vendor):
        return broken(
            _("{value} is of type {name}, not Vendor").format(
                value=points[0].value, name=type(vendor).__name__
            )
        )
    if vendor.name != name:
        return broken(
            _("its entry point is named {name!r}, its record {other!r}").format(
                name=name, other=vendor.name
            ),
            vendor,
        )
    try:
        available = vendor.is_available()
    except VendorUnavailable as error:
        reason = "; ".join(part.rstrip(".") for part in (error.message, error.hint) if part)
        return Found(name, vendor, "unavailable", reason, distribution)
    except Exception as error:  # another package's code, as above
        return broken(_error(error), vendor)
    if not available:
        return Found(
            name,
            vendor,
            "unavailable",
            _("is_available() returns False, without a reason"),
            distribution,
        )
    return Found(name, vendor, "available", "", distribution)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else _("an unknown distribution")


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _meant(name: str, rows: list[Found]) -> str:
    kind = name.partition(":")[0]
    owners = [row.name for row in rows if row.vendor is not None and row.vendor.device == kind]
    if owners:
        return _("{kind!r} is a device; vendors with this device: {names}.").format(
            kind=kind, names=_list(owners)
        )
    close = difflib.get_close_matches(name, [row.name for row in rows], n=1)
    if close:
        return _("did you mean {close!r}?").format(close=close[0])
    return _("set {variable} to one of these, or install the vendor's package.").format(
        variable=VARIABLE
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
