# SPDX-License-Identifier: Apache-2.0
"""Vendors whose device a package of theirs, or their own build of torch, already brings.

Nothing of a vendor is imported to learn whether it is installed.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deeplink.errors import VendorUnavailable
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
    """A vendor whose package, the first installed one of `packages`, makes `torch.<device>`."""
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
    """What tells a chip that presents itself as CUDA from NVIDIA's; one that is found suffices."""

    build: str = ""  # how the local part of its torch's version begins: "metax" of 2.8.0+metax3.5
    attribute: str = ""  # a name that only its torch has
    node: str = ""  # the device node of its driver
    devices: tuple[str, ...] = ()  # how its devices' names begin; seen once CUDA is initialised
    hip: bool = False  # whether its torch is a HIP build; needed, and not enough


def presenting_as_cuda(
    name: str,
    maker: str,
    marks: Marks,
    *,
    fused: str = "",
    visible_devices: str = "CUDA_VISIBLE_DEVICES",
) -> Vendor:
    """A vendor whose own build of torch calls its chips `cuda`."""
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
    """Whether a top-level package could be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def _package_check(
    package: str, packages: tuple[str, ...], device: str, visible_devices: str
) -> Callable[[], bool]:
    def is_available() -> bool:
        if not is_installed(package):
            raise VendorUnavailable(f"{' or '.join(packages)} is not installed")
        # torch first: a plug-in expects it; the plug-in's own error is the vendor's state
        torch = importlib.import_module("torch")
        importlib.import_module(package)
        module = getattr(torch, device, None)
        if module is None:
            raise AttributeError(f"{package} is imported, yet there is no torch.{device}")
        if module.device_count() == 0:
            raise VendorUnavailable(
                f"{package} is installed and sees no device",
                f"look at its driver, and at {visible_devices}.",
            )
        return True

    return is_available


def _is_marked(maker: str, marks: Marks, visible_devices: str) -> bool:
    """Asks for facts that need no context on a device; raises with the one that is missing."""
    import torch  # heavy, and only needed here

    if not torch.backends.cuda.is_built():
        raise VendorUnavailable(f"this torch build ({torch.__version__}) has no CUDA")
    if marks.hip and torch.version.hip is None:
        raise VendorUnavailable(f"this torch build ({torch.__version__}) is not a HIP build")
    if not any(_evidence(marks)):
        raise VendorUnavailable(
            f"nothing says that the chips are {maker}'s: {_sought(marks)}",
            f"{VARIABLE}=cuda serves them as they are.",
        )
    if torch.cuda.device_count() == 0:
        raise VendorUnavailable(
            f"torch is {maker}'s and sees no device",
            f"look at its driver, and at {visible_devices}.",
        )
    return True


def _evidence(marks: Marks) -> Iterable[bool]:
    import torch  # heavy, and only needed here

    local = torch.__version__.partition("+")[2]
    yield bool(marks.build) and local.startswith(marks.build)
    yield bool(marks.attribute) and hasattr(torch, marks.attribute)
    yield bool(marks.node) and Path(marks.node).exists()
    # a device's name needs a context, and making one is not ours to decide
    if marks.devices and torch.cuda.is_initialized():
        yield torch.cuda.get_device_name(0).startswith(marks.devices)


def _sought(marks: Marks) -> str:
    """What was looked for, and not found."""
    sought = [
        f"torch's version does not say +{marks.build}" if marks.build else "",
        f"torch has no {marks.attribute!r}" if marks.attribute else "",
        f"there is no {marks.node}" if marks.node else "",
        f"no device is known to be named {' or '.join(marks.devices)}" if marks.devices else "",
    ]
    return ", ".join(part for part in sought if part)
