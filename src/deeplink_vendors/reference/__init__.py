# SPDX-License-Identifier: Apache-2.0
"""The reference vendor: a device of host memory, on any machine, with faults on demand."""

from deeplink import native
from deeplink.errors import VendorUnavailable
from deeplink.vendor import Vendor


def is_available() -> bool:
    """Whether there is a compiler or an earlier build;
    nothing is built or imported for the check.
    """
    if native.is_built("torch_dipu") or native.has_compiler():
        return True
    raise VendorUnavailable(
        f"its native core is not built and there is no C++ compiler: {native.compiler_state()}.",
        hint="install g++, or set CXX.",
    )


vendor = Vendor(
    "reference",
    "dipu",
    is_available,
    device_module="torch_dipu",
    runtime="deeplink_vendors.reference.runtime",
    statistics="deeplink_vendors.reference.statistics",
    precision="deeplink_vendors.reference.precision",
    gaps="deeplink_vendors/reference/gaps.toml",
    collective="dicl",
    build="deeplink_vendors.reference.build",
    accelerator=False,
    note="reference device (CPU)",
)
