"""Many copies at once, where the device's vendor gives a kernel for it.

The vendor's module (`Vendor.copies`) has one function, `launcher(index)`, for the native part: the
addresses of what launches a kernel and of what tells whether a stream is being captured, as
cuLaunchKernel and cuStreamIsCapturing, and between them the kernel and its threads. The kernel is
given 64 rows of three numbers by value: where a piece of the device's memory is, where it goes (in
the device's memory, or in page-locked memory of the host), and its bytes. The second place of a
block of threads in the grid is its row.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache

from deeplink import vendor
from op_tools.reducing import Launcher

log = logging.getLogger("op_tools")


@cache
def launcher(kind: str, index: int) -> Launcher | None:
    """What starts the kernel of a kind of device; None: nothing does."""
    module = vendor.module_for(kind, "copies")
    if not module:
        return None
    try:
        found: Launcher = importlib.import_module(module).launcher(index)
    except Exception as error:  # another's module: torch's own copies do as well
        log.warning("op_tools goes without %s: %s", module, error)
        return None
    return found
