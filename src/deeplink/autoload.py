"""What `import torch` runs for us: nothing, unless DITORCH=1 asks for ditorch without a line."""

import logging
from importlib.metadata import entry_points

from deeplink import settings

GROUP = "deeplink.autoload"
log = logging.getLogger("ditorch")


def start() -> None:
    """Loads and calls what is registered, when DITORCH is on. Never raises: `import torch` must
    not fail by us.
    """
    try:
        if settings.DITORCH.get():
            for point in entry_points(group=GROUP):
                point.load()()
    except Exception as error:  # whatever is wrong with us is not wrong with the user's torch
        # a log line, not a warning: under `-W error` a warning would break `import torch`
        log.error("DITORCH=1, but ditorch could not start: %s: %s", type(error).__name__, error)
