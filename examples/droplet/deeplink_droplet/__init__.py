"""The vendor record of droplet, an invented chip: its runtime and its kernels are in C."""

from pathlib import Path

from deeplink.errors import VendorUnavailable
from deeplink.vendor import Vendor

LIBRARY = Path(__file__).with_name("libdroplet.so")


def is_available() -> bool:
    """Whether `make` has been run; opens nothing."""
    if not LIBRARY.exists():
        raise VendorUnavailable(
            f"{LIBRARY.name} is not built", "run make in the folder of droplet."
        )
    return True


vendor = Vendor(
    "droplet",
    "dipu",
    is_available,
    device_module="torch_dipu",
    runtime="deeplink_droplet.runtime",
    kernels="deeplink_droplet.kernels",
    gaps="deeplink_droplet/gaps.toml",
    collective="dicl",  # over the comm_ functions of its table
    accelerator=False,  # only by name: DEEPLINK_VENDOR=droplet
    note="droplet (made up, on the CPU)",
)
