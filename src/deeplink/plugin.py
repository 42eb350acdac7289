# SPDX-License-Identifier: Apache-2.0
"""Vendors whose device comes with their torch plug-in package or their own build of torch.

Whether a vendor is installed is checked without importing any of its code.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deeplink.errors import VendorUnavailable
from deeplink.i18n import _
from deeplink.vendor import VARIABLE, Vendor


def from_package(
    name: str,
    device: str,
    *packages: str,
    collective: str,
    visible_devices: str,
    transfer_tools: tuple[str, ...] = (),
    fused: str = "",
    gaps: str = "",
    native_cuda: bool = False,
) -> Vendor:
    """Describe a vendor whose package, the first installed one of `packages`,
    adds `torch.<device>`.
    """
    package = next((name for name in packages if is_installed(name)), packages[0])
    return Vendor(
        name,
        device,
        _package_check(package, packages, device, visible_devices),
        device_module=package,
        collective=collective,
        fused=fused,
        gaps=gaps,
        visible_devices=visible_devices,
        transfer_tools=transfer_tools,
        native_cuda=native_cuda,
    )


@dataclass(frozen=True)
class Marks:
    """Signs that distinguish a chip that presents itself as CUDA from
    NVIDIA's; one sign suffices.
    """

    build: str = ""  # prefix of the local part of its torch's version: "metax" of 2.8.0+metax3.5
    attribute: str = ""  # an attribute that only its torch has
    node: str = ""  # the device node of its driver
    devices: tuple[str, ...] = ()  # prefixes of its device names; readable once CUDA is initialised
    hip: bool = False  # whether its torch is a HIP build; necessary, not sufficient


def presenting_as_cuda(
    name: str,
    maker: str,
    marks: Marks,
    *,
    fused: str = "",
    visible_devices: str = "CUDA_VISIBLE_DEVICES",
) -> Vendor:
    """Describe a vendor whose own build of torch calls its chips `cuda`."""
    return Vendor(
        name,
        "cuda",
        lambda: _is_marked(maker, marks, visible_devices),
        device_module="torch.cuda",
        fused=fused,
        collective="nccl",
        visible_devices=visible_devices,
        native_cuda=True,
    )


def is_installed(package: str) -> bool:
    """Whether a top-level package could be imported; does not import it."""
    return importlib.util.find_spec(package) is not None


def _package_check(
    package: str, packages: tuple[str, ...], device: str, visible_devices: str
) -> Callable[[], bool]:
    def is_available() -> bool:
        if not is_installed(package):
            raise VendorUnavailable(
                _("{names} is not installed").format(names=" or ".join(packages))
            )
        # import torch first, which a plug-in expects; an error of the plug-in is the vendor's state
        torch = importlib.import_module("torch")
        importlib.import_module(package)
        module = getattr(torch, device, None)
        if module is None:
            raise AttributeError(
                _("{package} is imported, yet there is no torch.{device}").format(
                    package=package, device=device
                )
            )
        if module.device_count() == 0:
            raise VendorUnavailable(
                _("{package} is installed and sees no device").format(package=package),
                _("check its driver, and {visible_devices}.").format(
                    visible_devices=visible_devices
                ),
            )
        return True

    return is_available


def _is_marked(maker: str, marks: Marks, visible_devices: str) -> bool:
    """Check for signs that need no context on a device;
    raise VendorUnavailable with the missing one.
    """
    import torch  # heavy, and only needed here

    if not torch.backends.cuda.is_built():
        raise VendorUnavailable(
            _("this torch build ({version}) has no CUDA").format(version=torch.__version__)
        )
    if marks.hip and torch.version.hip is None:
        raise VendorUnavailable(
            _("this torch build ({version}) is not a HIP build").format(version=torch.__version__)
        )
    if not any(_evidence(marks)):
        raise VendorUnavailable(
            _("no sign shows that the chips are {maker}'s: {sought}").format(
                maker=maker, sought=_sought(marks)
            ),
            _("{variable}=cuda serves them as they are.").format(variable=VARIABLE),
        )
    if torch.cuda.device_count() == 0:
        raise VendorUnavailable(
            _("torch is {maker}'s and sees no device").format(maker=maker),
            _("check its driver, and {visible_devices}.").format(visible_devices=visible_devices),
        )
    return True


def _evidence(marks: Marks) -> Iterable[bool]:
    import torch  # heavy, and only needed here

    local = torch.__version__.partition("+")[2]
    yield bool(marks.build) and local.startswith(marks.build)
    yield bool(marks.attribute) and hasattr(torch, marks.attribute)
    yield bool(marks.node) and Path(marks.node).exists()
    # a device's name needs a context, which this check must not create
    if marks.devices and torch.cuda.is_initialized():
        yield torch.cuda.get_device_name(0).startswith(marks.devices)


def _sought(marks: Marks) -> str:
    """Describe the signs that were checked, for a message."""
    sought = [
        _("torch's version does not contain +{build}").format(build=marks.build)
        if marks.build
        else "",
        _("torch has no {attribute!r}").format(attribute=marks.attribute)
        if marks.attribute
        else "",
        _("there is no {node}").format(node=marks.node) if marks.node else "",
        _("no device is known to be named {names}").format(names=" or ".join(marks.devices))
        if marks.devices
        else "",
    ]
    return ", ".join(part for part in sought if part)
