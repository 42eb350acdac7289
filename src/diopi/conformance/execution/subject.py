# SPDX-License-Identifier: Apache-2.0
"""The vendor under test: a torch device, or kernels of the interface on the host."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from deeplink import vendor as vendors
from deeplink.errors import NoVendorError, VendorBrokenError
from deeplink.vendor import Vendor
from diopi import implementation, observing
from diopi.conformance.cases.sample import Callee
from diopi.conformance.execution.calls import Calls
from diopi.implementation import Implementation
from diopi.resolve import Resolved
from diopi.schema import own_name

# Error texts after which no later call of this process can succeed.
STICKY = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "unspecified launch failure",
    "device is lost",
)


@dataclass(frozen=True)
class Subject:
    """Where cases run. `active` is entered around each call: it installs the kernels."""

    name: str
    device: str
    gaps: Path | None = None
    active: Callable[[], AbstractContextManager[Any]] = nullcontext
    kernels: Mapping[str, Resolved] = field(default_factory=dict, repr=False)
    calls: Calls = field(default_factory=Calls, repr=False)  # of its C functions

    def ready(self) -> None:
        """Raise the device's error when it cannot be used at all."""
        torch.ones(1, device=self.device).cpu()

    def finish(self) -> None:
        """Synchronize the device; raises its asynchronous errors."""
        _finish(self.device)

    def lost(self, said: str) -> bool:
        """Whether an error text shows that the device is unusable for this process."""
        if any(words in said for words in STICKY):
            return True
        try:
            self.ready()
        except Exception:  # whatever it is
            return True
        return False

    @property
    def is_host(self) -> bool:
        """Whether it is torch's CPU itself, from which the expected results come."""
        return self.device == "cpu" and not self.kernels

    def has(self, op: str) -> bool:
        """Whether the vendor claims to implement an op."""
        return not self.kernels or op in self.kernels

    def takes(self, callee: Callee) -> Callee:
        """Replace the callee by the vendor's kernel where an op is called by its own name."""
        if not callee.direct or callee.name not in self.kernels:
            return callee
        # a kernel determines its own device
        return replace(callee, function=self.kernels[callee.name].call, factory=False)


def open_subject(name: str, *, runs: bool = True) -> Subject:
    """Open a vendor by its name, or `module` or `module:attribute` that holds kernels.

    A process that runs no case itself (`runs=False`) may have the device of another vendor.
    """
    # torch's default would judge TF32 as float32; op_db's import forbids the public name for it
    torch._C._set_cudnn_allow_tf32(False)
    if is_module(name):
        return of_kernels(name, implementation.of(_source(name), name))
    chosen = _chosen(name)
    vendors.load_device(chosen, any_chip=not runs)
    gaps = chosen.gaps_file()
    if chosen.kernels:
        return of_kernels(name, implementation.load(chosen), chosen.device, gaps)
    return Subject(name, chosen.device, gaps)


def is_module(name: str) -> bool:
    """Whether a name is that of a module of kernels,
    `module:attribute` included, not a vendor's.
    """
    if "." in name or ":" in name:
        return True
    return vendors.find(name) is None and importlib.util.find_spec(name) is not None


def _chosen(name: str) -> Vendor:
    try:
        return vendors.choose(name).vendor
    except NoVendorError as error:
        hint = "A module of kernels is named as `module` or `module:attribute`."
        raise NoVendorError(error.message, f"{error.hint} {hint}") from None


def _source(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    # another author's module: whatever it raises is reported as its state
    except Exception as error:
        raise VendorBrokenError(
            f"the kernels in {name} do not load: {type(error).__name__}: {error}.",
            "a vendor's name, or module:attribute of kernels; import it by hand to see where.",
        ) from error


def of_kernels(
    name: str, kernels: Implementation, device: str = "cpu", gaps: Path | None = None
) -> Subject:
    """Create a subject from kernels: each replaces its ATen overloads on the vendor's device."""
    runs = {
        op: found
        for op, found in kernels.resolve().items()
        if found.route in ("kernel", "decomposition")
    }
    routed = {
        overload: (found, form) for found in runs.values() for overload, form in _forms(found)
    }
    calls = Calls(lambda: _finish(device))

    @contextmanager
    def active() -> Iterator[None]:
        with observing.observed(calls), _Routed(routed, device):
            yield

    return Subject(name, device, gaps, active, runs, calls)


def _finish(device: str) -> None:
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def _forms(found: Resolved) -> list[tuple[str, Callable[..., Any]]]:
    rows = []
    for overload in found.op.aten:
        base, _, rest = overload.removeprefix("aten::").partition(".")
        schema = getattr(getattr(torch.ops.aten, base), rest or "default")._schema
        if any(argument.is_out for argument in schema.arguments):
            rows.append((overload, found.out))
        elif schema.is_mutable and base.endswith("_") and not found.op.written:
            rows.append((overload, found.inplace))
        else:
            rows.append((overload, found.call))
    return rows


class _Routed(TorchDispatchMode):
    """A mode that sends the ATen overloads of ops to the vendor's kernels."""

    def __init__(
        self, routed: dict[str, tuple[Resolved, Callable[..., Any]]], device: str = "cpu"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._routed, self._type = routed, torch.device(device).type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).replace("aten.", "aten::", 1).removesuffix(".default")
        if name not in self._routed or self._elsewhere(args, kwargs):
            return func(*args, **kwargs)
        found, form = self._routed[name]
        schema = func._schema
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        outs = [a.name for a in schema.arguments if a.is_out]
        known = {argument.name for argument in found.op.arguments}
        named = {key: value for key, value in given.items() if key not in outs}
        call = {own_name(schema.name, key): value for key, value in named.items()}
        call = {key: value for key, value in call.items() if key in known}
        call |= dict(zip(found.op.result_names, (given[out] for out in outs), strict=False))
        if form is found.inplace:
            first = found.op.arguments[0].name
            return form(call.pop(first), **call)
        return form(**call)

    def _elsewhere(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the kernels do not apply: on the host, or a copy from or to it."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not tensors:  # a device creates tensors itself
            return self._type != "cpu"
        asked = kwargs.get("device")
        if asked is not None:
            places = {torch.device(asked).type, *(tensor.device.type for tensor in tensors)}
        else:
            places = {tensor.device.type for tensor in tensors if tensor.dim()}
        if places:
            return places != {self._type}
        # numbers alone: one of them on the device is enough, a Python number is on the host
        return all(tensor.device.type != self._type for tensor in tensors)
