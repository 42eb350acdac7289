# SPDX-License-Identifier: Apache-2.0
"""Selection of an op's kernel: of the vendor of the tensors' device, else the reference.

A vendor's record names its module by `fused`. The module has kernels as functions, with the names
and arguments of their ops; the limits of a kernel are a predicate (`diopi.resolve.limited`).
`CACHE` is the required `Layout`, `WEIGHTS = "IO"` requires a weight [out, in] to be [in, out] in
memory; `NOTE` states how far the kernels were tested, unless fully. The module may also have
`native(refused)`, which registers kernels in C++ on the device's dispatch key, so that calls reach
them without Python, and returns their ops' names; they call `refused` for unsupported calls, and
for all calls while `bypass(True)` is in force.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError, NoKernelError, NoVendorError, SignatureError
from deeplink.i18n import _
from deeplink.vendor import Vendor
from dlinfer import fast_call
from dlinfer.layout import Layout
from dlinfer.registry import OPS, FusedOp

log = logging.getLogger("dlinfer")

REFERENCE = "reference"
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Served:
    """The fused kernels for one kind of device; `lacks` is the reason if there are none."""

    device: str
    vendor: str
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    native: frozenset[str] = frozenset()
    layout: Layout = field(default_factory=Layout)
    weights: str = "OI"  # the memory order of a weight [out, in], outermost first
    lacks: str = ""
    note: str = ""  # how far the kernels were tested, for reports

    @property
    def label(self) -> str:
        """The name in tables of routes."""
        return f"{self.vendor} ({self.note})" if self.note else self.vendor


@dataclass(frozen=True)
class Fallback:
    """An op that ran by its reference although its device has a vendor's kernels."""

    op: str
    vendor: str
    reason: str


_fallbacks: dict[Fallback, int] = {}
_forced = ""  # set by `using`
_native: dict[str, Any] = {}  # vendor -> its module, whose kernels are on the dispatch key
_loading = threading.RLock()  # kernels are registered once, by the first thread


def served(device: str) -> Served:
    """Return the kernels for a kind of device; the first call loads the vendor's module."""
    return _served(device, _requested())


def routes(device: str) -> dict[str, str]:
    """Return the route of each op on a kind of device: op -> owner of the kernel."""
    found = served(device)
    own = found.native | found.kernels.keys()
    return {name: found.label if name in own else REFERENCE for name in OPS}


def takes(name: str, device: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a vendor's own kernel supports a call; a native kernel decides when it is called."""
    found = served(device)
    if name in found.native:
        return True
    kernel = found.kernels.get(name)
    supports = getattr(kernel, "supports", None)
    return kernel is not None and (supports is None or bool(supports(**arguments)))


def fallbacks() -> dict[Fallback, int]:
    """Return the ops that ran by their reference although the device has a vendor, with counts."""
    return dict(_fallbacks)


def by_reference(op: str) -> int:
    """Return the number of calls of an op that ran by its reference although
    the device has a vendor.
    """
    return sum(times for row, times in _fallbacks.items() if row.op == op)


@contextmanager
def using(vendor: str) -> Iterator[None]:
    """Run ops by one vendor's kernels, or by `reference`, in the whole process inside the block."""
    global _forced
    before, _forced = _forced, vendor
    try:
        _follow()
        yield
    finally:
        _forced = before
        _follow()


def entry(op: FusedOp) -> Kernel:
    """Return the function for devices without a kernel on the dispatch key: it selects a kernel."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _run(op, args, kwargs)

    return call


def refused(vendor: str, name: str, reason: str, *args: Any) -> Any:
    """Return a native kernel's result for a call that it does not support; "": it is bypassed."""
    if reason:
        return _by_reference(OPS[name], vendor, reason, args, {})
    return _run(OPS[name], args, {})


def _run(op: FusedOp, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    found = served(_device(args, kwargs))
    if op.name in found.native:  # `served` has just loaded it
        return op.overload(*args, **kwargs)
    kernel = found.kernels.get(op.name)
    if kernel is None:
        reason = found.lacks or "it has no kernel for it"
        return _by_reference(op, found.vendor, reason, args, kwargs)
    supports = getattr(kernel, "supports", None)
    if supports is not None and not supports(*args, **kwargs):
        reason = f"its kernel does not take {_described(args, kwargs)}"
        return _by_reference(op, found.vendor, reason, args, kwargs)
    return kernel(*args, **kwargs)


def _by_reference(
    op: FusedOp, vendor: str, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    if vendor != REFERENCE:
        _report(Fallback(op.name, vendor, reason))
    return op.meaning(*args, **kwargs)


def _report(row: Fallback) -> None:
    if settings.DLINFER_STRICT.get():
        raise NoKernelError(
            _("vendor {vendor!r} does not run {op}: {reason}.").format(
                vendor=row.vendor, op=row.op, reason=row.reason
            ),
            _("unset {name} to run it by its reference, in plain torch.").format(
                name=settings.DLINFER_STRICT.name
            ),
        )
    if row not in _fallbacks:
        log.warning("%s runs by its reference, not by %s: %s", row.op, row.vendor, row.reason)
    _fallbacks[row] = _fallbacks.get(row, 0) + 1


def _requested() -> str:
    return _forced or settings.DLINFER_VENDOR.get()


def _follow() -> None:
    """Pass the selection to kernels on dispatch keys, which torch calls directly."""
    wanted = _requested()
    for name, module in _native.items():
        module.bypass(bool(wanted) and wanted != name)


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device.type
    raise AssertionError("every op has a tensor")


def _described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        if not isinstance(value, Tensor):
            return str(value)
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

    return ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in kwargs.items())])


@functools.cache
def _served(device: str, wanted: str) -> Served:
    record = None if wanted == REFERENCE else _vendor(device, wanted)
    if record is None:  # no vendor has fused kernels for it: nothing is missing
        return Served(device, REFERENCE)
    with _loading:
        return _loaded(device, record.name)


def _vendor(device: str, wanted: str) -> Vendor | None:
    """Return the vendor with fused kernels for the device: the requested,
    else the active, else any.
    """
    rows = vendors.discover()
    names = [row.name for row in rows]
    if wanted and wanted not in names:
        raise NoVendorError(
            _("the requested vendor is {wanted!r}; installed: {names}.").format(
                wanted=wanted, names=", ".join(names)
            ),
            _("{reference!r} runs every op in plain torch.").format(reference=REFERENCE),
        )
    usable = [row.vendor for row in rows if row.vendor and row.status == "available"]
    serving = [v for v in usable if v.device == device and v.fused]
    chosen = wanted or settings.DEEPLINK_VENDOR.get()
    otherwise = serving[0] if serving and not wanted else None
    return next((v for v in serving if v.name == chosen), otherwise)


@functools.cache
def _loaded(device: str, name: str) -> Served:
    """Load the kernels of a vendor's module; an error is logged, and the reference runs."""
    row = vendors.find(name)
    assert row is not None and row.vendor is not None  # `_vendor` has just found it
    native: frozenset[str] = frozenset()
    try:
        module = importlib.import_module(row.vendor.fused)
        kernels = checked(module, name)
        if hasattr(module, "native"):
            native = frozenset(module.native(functools.partial(refused, name)))
    except DeeplinkError as error:
        return Served(device, name, lacks=error.message.splitlines()[0].rstrip("."))
    # another package's module: whatever it raises is reported as its state
    except Exception as error:
        return Served(device, name, lacks=f"{type(error).__name__}: {error}")
    if native:
        _native[name] = module
        settings.watch(settings.DLINFER_VENDOR, _follow)
        _follow()
        fast_call.in_cpp()
    note = getattr(module, "NOTE", "")
    if note:
        log.warning("the fused kernels of %s: %s; dlinfer.conformance tries them", name, note)
    wanted = getattr(module, "CACHE", Layout()), getattr(module, "WEIGHTS", "OI")
    return Served(device, name, kernels, native, *wanted, note=note)


def checked(module: Any, vendor: str) -> dict[str, Kernel]:
    """Return the kernels of a module by their ops' names; SignatureError for other arguments."""
    found = {name: getattr(module, name) for name in OPS if hasattr(module, name)}
    for name, kernel in found.items():
        wanted, given = (
            ", ".join(inspect.signature(f).parameters) for f in (OPS[name].meaning, kernel)
        )
        if wanted != given:
            raise SignatureError(
                _("{vendor}'s kernel {name} takes ({given}), and its op ({wanted}).").format(
                    vendor=vendor, name=name, given=given, wanted=wanted
                ),
                _("a kernel has the arguments of its op, in their order."),
            )
    return found
