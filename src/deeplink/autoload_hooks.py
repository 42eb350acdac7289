# SPDX-License-Identifier: Apache-2.0
"""Start what the environment requests of `import torch`, found by its entry point.

DITORCH=1 requests ditorch, OP_TOOLS_RUN the operator tools, without a line in the program.
"""

import logging
import sys
from importlib.metadata import EntryPoint, entry_points

from deeplink import settings

GROUP = "deeplink.autoload"
log = logging.getLogger("ditorch")


def start() -> None:
    """Load and call the requested entry points, ditorch first because the others may use it.

    Never raises: a defect of this package must not make `import torch` fail.
    """
    if not (settings.DITORCH.is_set() or settings.OP_TOOLS_RUN.is_set()):
        return
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name != "ditorch"):
        setting = settings.OP_TOOLS_RUN if point.name == "op_tools" else settings.DITORCH
        try:
            if setting.get() and not _is_coming(point):
                point.load()()
        except Exception as error:  # whatever fails here must not break the user's torch
            # a log line, not a warning: under `-W error` a warning would break `import torch`
            text = "%s is set, but %s could not start: %s: %s"
            log.error(text, setting.name, point.name, type(error).__name__, error)


def _is_coming(point: EntryPoint) -> bool:
    """Whether its import has begun: `import ditorch` imports torch,
    and activates itself afterwards.
    """
    module = sys.modules.get(point.module)
    return module is not None and not hasattr(module, point.attr)


def cuda_names(vendor: str) -> None:
    """Provide CUDA's names for the device of a vendor, as DIPU_MOCK_CUDA requests."""
    with settings.selecting_vendor(vendor):
        for point in entry_points(group=GROUP, name="ditorch"):
            point.load()()
