"""What a device's vendor gives beside torch's kernels: a module with `start(table, device)`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from deeplink import vendor

log = logging.getLogger("op_tools")
Start = Callable[[Tensor, torch.device], Callable[[], Tensor]]


def offered(kind: str, part: str, attempt: Callable[[Start, Tensor], None]) -> Start | None:
    """A kind of device's, once it has been tried with a one; None: nothing, or it does not run."""
    module = vendor.module_for(kind, part)
    if not module:
        return None
    try:
        start: Start = importlib.import_module(module).start
        attempt(start, torch.ones(1, device=kind))
    except Exception as error:  # another's module: torch's own kernels do as well
        log.warning("op_tools goes without %s: %s", module, error)
        return None
    return start
